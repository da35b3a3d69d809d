// SPDX-License-Identifier: Apache-2.0
// The backend "droptest" of torch.distributed: a c10d::Backend that holds another one and loses packets of this rank's
// messages before the inner calls (docs/pytorch_backend.md). One source for torch 2.6 and later: `forwarded.inc`, made
// from the installed header by forwarding.py, has the other virtual functions. New names of the functions here
// (all_gather_single, ...) come back to the old ones there, functions that move no data go to the inner backend, and
// all others are refused under loss.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "by_device.h"
#include "in_order.h"
#include "messages.h"

namespace c10d::droptest {

/// The network of this rank as text without line ends: version, seed, rules and classes.
std::string identity_of(RankNetwork& network) {
  std::size_t size = 0;
  network.check(droptest_network_identity(network.open(), nullptr, 0, &size));
  std::string identity(size, '\0');
  network.check(droptest_network_identity(network.open(), identity.data(), size, &size));
  identity.resize(size - 1);  // without the byte 0
  return identity;
}

/// The members of a new group agree on the largest number that any of them would use next. Throws: an error on every
/// rank where ranks have different networks.
std::uint32_t agreed_number(Store& store, RankNetwork& network, int rank, const std::vector<std::int32_t>& members) {
  std::uint32_t number = 0;
  {
    const std::lock_guard lock(network.mutex);
    number = network.next_group;
  }
  const std::string text = std::to_string(number) + "\n" + identity_of(network);
  store.set("droptest/" + std::to_string(rank), std::vector<std::uint8_t>(text.begin(), text.end()));
  for (std::size_t other = 0; other < members.size(); ++other) {
    const std::vector<std::uint8_t> bytes = store.get("droptest/" + std::to_string(other));
    const std::string theirs(bytes.begin(), bytes.end());
    number = std::max(number, static_cast<std::uint32_t>(std::stoul(theirs)));
    const std::string identity = theirs.substr(theirs.find('\n') + 1);
    network.check(droptest_network_check_peer(network.open(), members[other], identity.c_str()));
  }
  const std::lock_guard lock(network.mutex);
  network.next_group = std::max(network.next_group, number + 1);
  return number;
}

/// Determinism: fates are a pure function of the network's seed, the world ranks and the order of the calls.
class LossyBackend final : public Backend {
 public:
  /// `members`: world ranks of the group, in order. `number`: of the group (droptest_link.group).
  LossyBackend(intrusive_ptr<Backend> inner, std::shared_ptr<RankNetwork> network, std::vector<std::int32_t> members,
               std::uint32_t number)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        network_(std::move(network)),
        members_(std::move(members)),
        number_(number) {}

  ~LossyBackend() override { end_without_python(std::move(inner_)); }

  const intrusive_ptr<Backend>& inner() const { return inner_; }
  std::uint32_t number() const { return number_; }

  const std::string getBackendName() const override { return "droptest"; }

  intrusive_ptr<Work> allreduce(Tensors& tensors, const AllreduceOptions& opts) override {
    return sums("all_reduce", tensors, opts.reduceOp, [&] { return inner_->allreduce(tensors, opts); });
  }
  intrusive_ptr<Work> allreduce_coalesced(Tensors& tensors, const AllreduceCoalescedOptions& opts) override {
    return sums("all_reduce", tensors, opts.reduceOp, [&] { return inner_->allreduce_coalesced(tensors, opts); });
  }
  intrusive_ptr<Work> allreduce_sparse(Tensors& tensors, const AllreduceOptions& opts) override {
    for (const Tensor& tensor : tensors) exempt("all_reduce", {static_cast<std::uint64_t>(tensor._nnz()), {}});
    return inner_->allreduce_sparse(tensors, opts);
  }
  // Only the root has results; the others' tensors stay as they are.
  intrusive_ptr<Work> reduce(Tensors& tensors, const ReduceOptions& opts) override {
    if (opts.rootRank == getRank()) {
      return sums("reduce", tensors, opts.reduceOp, [&] { return inner_->reduce(tensors, opts); });
    }
    Tensors copies = copies_of(tensors);
    for (Tensor& copy : copies) {
      if (const auto sum = lose_contribution("reduce", copy, opts.reduceOp)) finish_nothing(*sum);
    }
    return inner_->reduce(copies, opts);
  }

  intrusive_ptr<Work> reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                     const ReduceScatterOptions& opts) override {
    std::vector<Tensors> copies;
    Finishes finishes;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      // The packets of a rank's message are cut from all of its parts together.
      const Tensor flat = flattened(inputs[i]);
      std::int64_t begin = 0;
      for (int rank = 0; rank < getRank(); ++rank) begin += inputs[i][static_cast<std::size_t>(rank)].numel();
      add(finishes, lose_contribution("reduce_scatter", flat, opts.reduceOp), outputs[i], begin);
      copies.push_back(parts_of(flat, inputs[i]));
    }
    return after(inner_->reduce_scatter(outputs, copies, opts), std::move(finishes));
  }
  intrusive_ptr<Work> _reduce_scatter_base(Tensor& output, Tensor& input, const ReduceScatterOptions& opts) override {
    Tensor copy = copy_of(input);
    Finishes finishes;
    add(finishes, lose_contribution("reduce_scatter", copy, opts.reduceOp), output, getRank() * output.numel());
    return after(inner_->_reduce_scatter_base(output, copy, opts), std::move(finishes));
  }
  intrusive_ptr<Work> reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const ReduceScatterOptions& opts) override {
    Tensors copies = copies_of(inputs);
    Finishes finishes;
    for (std::size_t i = 0; i < copies.size(); ++i) {
      add(finishes, lose_contribution("reduce_scatter", copies[i], opts.reduceOp), outputs[i],
          getRank() * outputs[i].numel());
    }
    return after(inner_->reduce_scatter_tensor_coalesced(outputs, copies, opts), std::move(finishes));
  }

  intrusive_ptr<Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs, const AllgatherOptions& opts) override {
    Tensors messages = messages_of(inputs, {});
    return inner_->allgather(outputs, messages, opts);
  }
  intrusive_ptr<Work> _allgather_base(Tensor& output, Tensor& input, const AllgatherOptions& opts) override {
    Tensors messages = messages_of({input}, {output});
    return inner_->_allgather_base(output, messages.front(), opts);
  }
  intrusive_ptr<Work> allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                          const AllgatherOptions& opts) override {
    Tensors messages = messages_of(inputs, {});
    return inner_->allgather_coalesced(outputs, messages, opts);
  }
  intrusive_ptr<Work> allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const AllgatherOptions& opts) override {
    Tensors messages = messages_of(inputs, outputs);
    return inner_->allgather_into_tensor_coalesced(outputs, messages, opts);
  }

  intrusive_ptr<Work> alltoall_base(Tensor& output, Tensor& input, std::vector<std::int64_t>& output_sizes,
                                    std::vector<std::int64_t>& input_sizes, const AllToAllOptions& opts) override {
    Tensor copy = copy_of(input);
    std::int64_t row = 0;
    for (int peer = 0; peer < getSize() && copy.dim() > 0; ++peer) {
      const std::int64_t rows =
          input_sizes.empty() ? copy.size(0) / getSize() : input_sizes[static_cast<std::size_t>(peer)];
      lose_message("all_to_all", copy.narrow(0, row, rows), peer);
      row += rows;
    }
    return inner_->alltoall_base(output, copy, output_sizes, input_sizes, opts);
  }
  intrusive_ptr<Work> alltoall(Tensors& outputs, Tensors& inputs, const AllToAllOptions& opts) override {
    Tensors copies = copies_of(inputs);
    for (std::size_t peer = 0; peer < copies.size(); ++peer) {
      lose_message("all_to_all", copies[peer], static_cast<int>(peer));
    }
    return inner_->alltoall(outputs, copies, opts);
  }
  intrusive_ptr<Work> send(Tensors& tensors, int destination, int tag) override {
    Tensors copies = copies_of(tensors);
    for (const Tensor& copy : copies) lose_message("send", copy, destination);
    return inner_->send(copies, destination, tag);
  }

  // Exempt from loss, and counted. Receivers of messages lose nothing: the sender has.
  intrusive_ptr<Work> broadcast(Tensors& tensors, const BroadcastOptions& opts) override {
    for (const Tensor& tensor : tensors) class_of("broadcast", message_of(tensor));
    return inner_->broadcast(tensors, opts);
  }
  intrusive_ptr<Work> gather(std::vector<Tensors>& outputs, Tensors& inputs, const GatherOptions& opts) override {
    for (const Tensor& tensor : inputs) class_of("gather", message_of(tensor));
    return inner_->gather(outputs, inputs, opts);
  }
  intrusive_ptr<Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs, const ScatterOptions& opts) override {
    for (const Tensor& tensor : outputs) class_of("scatter", message_of(tensor));
    return inner_->scatter(outputs, inputs, opts);
  }
  intrusive_ptr<Work> barrier(const BarrierOptions& opts) override {
    class_of("barrier", {});
    return inner_->barrier(opts);
  }
  void monitoredBarrier(const BarrierOptions& opts, bool wait_for_all_ranks) override {
    class_of("barrier", {});
    inner_->monitoredBarrier(opts, wait_for_all_ranks);
  }

#include "forwarded.inc"

 private:
  droptest_call call_of(const char* operation, const Message& message) const {
    return {operation, getGroupDesc().c_str(), getSize(), message.type, message.elements};
  }
  void exempt(const char* operation, const Message& message) const {
    const droptest_call call = call_of(operation, message);
    network_->check(droptest_count_exempt(network_->open(), &call));
  }
  /// The class of a call whose packets can be lost; DROPTEST_CONTROL: it is exempt, and counted.
  droptest_class class_of(const char* operation, const Message& message) const {
    const droptest_call call = call_of(operation, message);
    droptest_class found = DROPTEST_CONTROL;
    network_->check(droptest_classify(network_->open(), &call, &found));
    return found;
  }
  droptest_group* group_of(droptest_class traffic_class) {
    const std::lock_guard lock(network_->mutex);
    droptest_group*& group = groups_[traffic_class];
    if (group == nullptr) {
      network_->check(droptest_group_open(network_->open(), traffic_class, number_, members_.data(),
                                          static_cast<std::int32_t>(members_.size()), &group));
    }
    return group;
  }

  /// Calls `lose(address, memory)` with the elements in one piece, which go back to the tensor afterwards.
  template <class Lose>
  static void in_place(const Tensor& tensor, const Lose& lose) {
    const Tensor data = tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
    const std::optional<droptest_memory> memory = memory_of(data);
    lose(data.data_ptr(), memory ? &*memory : nullptr);
    if (!data.is_same(tensor)) tensor.copy_(data);
  }
  static Tensor copy_of(const Tensor& tensor) { return tensor.clone(); }
  static Tensors copies_of(const Tensors& tensors) {
    Tensors copies;
    for (const Tensor& tensor : tensors) copies.push_back(copy_of(tensor));
    return copies;
  }
  static Tensor flattened(const Tensors& parts) {
    Tensors flat;
    for (const Tensor& part : parts) flat.push_back(part.reshape({-1}));
    return at::cat(flat);
  }
  static Tensors parts_of(const Tensor& flat, const Tensors& like) {
    Tensors parts;
    std::int64_t begin = 0;
    for (const Tensor& one : like) {
      parts.push_back(flat.narrow(0, begin, one.numel()).view(one.sizes()));
      begin += one.numel();
    }
    return parts;
  }

  /// What follows on the works of a call. Works of different devices end on different threads and streams, and have no
  /// common order.
  struct Finishes {
    std::vector<Finish> all;
    bool are_on_host = true;
  };
  /// A sum with results that must be scaled.
  struct Unfinished {
    droptest_group* group;
    std::uint64_t number;
  };

  /// Takes this rank's lost packets out of a contribution to a sum. Returns the sum where its results must be scaled.
  std::optional<Unfinished> lose_contribution(const char* operation, const Tensor& tensor, const ReduceOp& op) {
    const Message message = message_of(tensor);
    const std::optional<droptest_reduction> reduction = reduction_of(op);
    if (!reduction) {
      exempt(operation, message);
      return std::nullopt;
    }
    const droptest_class traffic_class = class_of(operation, message);
    if (traffic_class == DROPTEST_CONTROL) return std::nullopt;
    droptest_group* const group = group_of(traffic_class);
    Unfinished sum{group, 0};
    in_place(tensor, [&](void* data, const droptest_memory* memory) {
      network_->check(
          droptest_group_reduce(group, *reduction, data, message.elements, message.type, memory, nullptr, &sum.number));
    });
    if (sum.number == 0) return std::nullopt;
    if (is_coalescing_) {
      finish_nothing(sum);
      TORCH_CHECK(false, "droptest: rank ", network_->rank,
                  ": a sum with a fill that scales results cannot be coalesced; "
                  "want fill zero");
    }
    return sum;
  }
  /// Ends a sum of which this rank has no results.
  void finish_nothing(const Unfinished& sum) {
    network_->check(droptest_group_finish_reduce(sum.group, sum.number, nullptr, 0, 0, nullptr));
  }
  /// Adds the scaling of `results`, elements first_element onwards of the message, where there is a sum.
  void add(Finishes& finishes, const std::optional<Unfinished>& sum, const Tensor& results,
           std::int64_t first_element) {
    if (!sum) return;
    finishes.are_on_host = results.is_cpu();
    finishes.all.push_back([network = network_, sum = *sum, results, first_element] {
      const Message part = message_of(results);
      const std::uint64_t parts_of_element = part.elements / std::max<std::uint64_t>(1, results.numel());
      network->open();
      in_place(results, [&](void* data, const droptest_memory* memory) {
        network->check(droptest_group_finish_reduce(sum.group, sum.number, data,
                                                    static_cast<std::uint64_t>(first_element) * parts_of_element,
                                                    part.elements, memory));
      });
    });
  }
  intrusive_ptr<Work> after(intrusive_ptr<Work> work, Finishes finishes) {
    if (finishes.all.empty()) return work;
    const auto& in_order = finishes.are_on_host ? in_order_on_host_ : in_order_on_device_;
    return in_order->after(work, [finishes = std::move(finishes.all)] {
      for (const Finish& finish : finishes) finish();
    });
  }
  template <class Call>
  intrusive_ptr<Work> sums(const char* operation, const Tensors& tensors, const ReduceOp& op, const Call& call) {
    Finishes finishes;
    for (const Tensor& tensor : tensors) add(finishes, lose_contribution(operation, tensor, op), tensor, 0);
    return after(call(), std::move(finishes));
  }

  /// This rank's messages to an all-gather with zeros in lost packets: copies, but for inputs that lie in the outputs.
  Tensors messages_of(const Tensors& inputs, const Tensors& outputs) {
    Tensors messages;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Message message = message_of(inputs[i]);
      const droptest_class traffic_class = class_of("all_gather", message);
      if (traffic_class == DROPTEST_CONTROL) {
        messages.push_back(inputs[i]);
        continue;
      }
      const bool in_output = i < outputs.size() && lies_in(inputs[i], outputs[i]);
      messages.push_back(in_output ? inputs[i] : copy_of(inputs[i]));
      in_place(messages.back(), [&](void* data, const droptest_memory* memory) {
        network_->check(
            droptest_group_gather(group_of(traffic_class), data, message.elements, message.type, memory, nullptr));
      });
    }
    return messages;
  }

  /// Takes the lost packets out of a message to one rank of the group.
  void lose_message(const char* operation, const Tensor& tensor, int peer) {
    if (peer == getRank() || tensor.numel() == 0) return;
    const Message message = message_of(tensor);
    const droptest_class traffic_class = class_of(operation, message);
    if (traffic_class == DROPTEST_CONTROL) return;
    const droptest_link link{traffic_class, DROPTEST_GATHER, members_[static_cast<std::size_t>(getRank())],
                             members_[static_cast<std::size_t>(peer)], 0};
    droptest_flow* flow = nullptr;
    network_->check(droptest_flow_open(network_->open(), &link, 1, &flow));
    in_place(tensor, [&](void* data, const droptest_memory* memory) {
      network_->check(droptest_flow_lose(flow, DROPTEST_SUM, data, message.elements, message.type, memory, nullptr));
    });
  }

  intrusive_ptr<Backend> inner_;
  const std::shared_ptr<RankNetwork> network_;  // shared by the rank's groups
  const std::vector<std::int32_t> members_;
  const std::uint32_t number_;
  std::map<droptest_class, droptest_group*> groups_;
  std::atomic<bool> is_coalescing_ = false;
  const std::shared_ptr<InOrder> in_order_on_host_ = std::make_shared<InOrder>();  // shared with works under way
  const std::shared_ptr<InOrder> in_order_on_device_ = std::make_shared<InOrder>();
};

std::shared_ptr<RankNetwork> make_network(std::uintptr_t handle, int rank) {
  auto network = std::make_shared<RankNetwork>();
  network->network = reinterpret_cast<droptest_network*>(handle);
  network->rank = rank;
  return network;
}

intrusive_ptr<LossyBackend> wrap(const intrusive_ptr<Backend>& inner, const intrusive_ptr<Store>& store,
                                 const std::shared_ptr<RankNetwork>& network, std::vector<std::int32_t> members,
                                 std::optional<std::uint32_t> number) {
  if (!number) number = agreed_number(*store, *network, inner->getRank(), members);
  return c10::make_intrusive<LossyBackend>(inner, network, std::move(members), *number);
}

}  // namespace c10d::droptest

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  namespace py = pybind11;
  using namespace c10d::droptest;
  py::module_::import("torch.distributed");  // has the type of the base class
  py::class_<RankNetwork, std::shared_ptr<RankNetwork>>(module, "RankNetwork").def("close", [](RankNetwork& network) {
    network.network = nullptr;
  });
  py::class_<LossyBackend, c10d::Backend, c10::intrusive_ptr<LossyBackend>>(module, "LossyBackend")
      .def_property_readonly("number", &LossyBackend::number)
      .def_property_readonly("inner", &LossyBackend::inner)
      // PyTorch calls it on ranks that a split leaves out.
      .def("perform_nocolor_split", [](const py::object& self, const py::object& device) {
        return self.attr("inner").attr("perform_nocolor_split")(device);
      });
  py::class_<ByDevice, c10d::Backend, c10::intrusive_ptr<ByDevice>>(module, "ByDevice")
      .def(py::init<c10::intrusive_ptr<c10d::Backend>, c10::intrusive_ptr<c10d::Backend>>(), py::arg("host"),
           py::arg("cuda"));
  module.def("make_network", &make_network, py::arg("handle"), py::arg("rank"));
  module.def("wrap", &wrap, py::arg("inner"), py::arg("store"), py::arg("network"), py::arg("members"),
             py::arg("number"), py::call_guard<py::gil_scoped_release>());
}
