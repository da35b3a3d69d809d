# SPDX-License-Identifier: Apache-2.0
"""The C++ that is made from PyTorch's header of backends, for headers written here: any PyTorch will do."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
from droptest.torch import build, forwarding

HAND_WRITTEN = "void barrier() override { return; }\n  void _allgather_base(int a) override {"


def header(*members: str) -> str:
    return "class TORCH_API Backend : public torch::CustomClassHolder {\n" + "\n".join(members) + "\n};\n"


def functions(*members: str) -> list[forwarding.Function]:
    return forwarding.virtual_functions(header(*members))


def bodies(text: str) -> dict[str, str]:
    """The body of each function of generated C++."""
    found = {}
    for line in text.splitlines():
        if " override " in line:
            head, body = line.split(" override ", 1)
            found[head.split("(")[0].split()[-1]] = body
    return found


def forwarded(*members: str) -> dict[str, str]:
    return bodies(forwarding.forwarded(header(*members), HAND_WRITTEN, "2.99.0"))


def test_a_function_that_is_not_overridden_is_forwarded():
    text = forwarding.forwarded(
        """class Backend {
  virtual const std::string getName() const { return name(1); }
  // virtual int not_this() { }
  virtual void hook(std::function<void(std::shared_ptr<WorkInfo>, int)>&& hook, bool = false, long size = 1);
  virtual void barrier();
};""",
        HAND_WRITTEN,
        "2.99.0",
    )
    assert [line.strip() for line in text.splitlines()] == [
        '#line 1 "c10d::Backend::getName of torch 2.99.0"',
        "const std::string getName() const override { return inner_->getName(); }",
        '#line 1 "c10d::Backend::hook of torch 2.99.0"',
        "void hook(std::function<void(std::shared_ptr<WorkInfo>, int)>&& a0, bool a1, long a2) override "
        "{ return inner_->hook("
        "std::forward<std::function<void(std::shared_ptr<WorkInfo>, int)>&&>(a0), "
        "std::forward<bool>(a1), std::forward<long>(a2)); }",
    ]


def test_functions_of_nested_classes_and_of_others_are_not_the_backends_own():
    found = forwarding.virtual_functions(
        """struct Other { virtual void of_another_class(); };
class Backend;
class TORCH_API Backend : public Base {
 public:
  struct Options : Base {
    virtual c10::intrusive_ptr<Options> clone() const { return make(*this); }
    struct Deeper { virtual void deep(); };
  };
  ~Backend() override = 0;
  int getRank() const { if (rank_ < 0) { fail("no } rank"); } return rank_; }
  virtual bool own() const { TORCH_CHECK(false, "no { virtual void text() here"); }
};
class Later { virtual void later(); };"""
    )
    assert [function.name for function in found] == ["own"]


@pytest.mark.parametrize(
    ("declaration", "result", "types", "after"),
    [
        ("c10::intrusive_ptr<Window> new_window(const std::optional<at::Tensor>& /* tensor */ = std::nullopt)",
         "c10::intrusive_ptr<Window>", ("const std::optional<at::Tensor>&",), ""),
        ("std::unordered_map<std::string, uint64_t> f()", "std::unordered_map<std::string, uint64_t>", (), ""),
        ("at::Tensor f(long size, at::TensorOptions options = {})", "at::Tensor", ("long", "at::TensorOptions"), ""),
        ("void f(const int, unsigned int, unsigned long long, const Options, const Options named)", "void",
         ("const int", "unsigned int", "unsigned long long", "const Options", "const Options"), ""),
        ("void f(const std::map<int, std::pair<int, bool>>& pairs = {{1, {2, true}}}, int* place = nullptr)", "void",
         ("const std::map<int, std::pair<int, bool>>&", "int*"), ""),
        ("[[nodiscard]] bool f() const noexcept", "bool", (), " const noexcept"),
        ("bool f() const override", "bool", (), " const"),
        ("auto f(int a) -> std::vector<int>", "auto", ("int",), " -> std::vector<int>"),
        ("std::optional<at::Device> f(std::function<int(int, bool)> hook)", "std::optional<at::Device>",
         ("std::function<int(int, bool)>",), ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", [";", " = 0;", " { return {}; }"])
def test_types_of_results_and_parameters_are_those_of_the_declaration(declaration, result, types, after, end):
    (found,) = functions(f"  virtual {declaration}{end}")
    assert (found.result, found.types, found.after) == (result, types, after)


def test_destructors_and_final_functions_are_not_overridden():
    found = functions("virtual ~Backend() = default;", "virtual void fixed() const final;", "virtual void open();")
    assert [function.name for function in found] == ["open"]


def test_directives_and_attributes_are_no_part_of_a_declaration():
    found = functions("#define NAME virtual void f(); \\\n  virtual void more()", "virtual [[deprecated]] int old();")
    assert [(function.result, function.name) for function in found] == [("int", "old")]


@pytest.mark.parametrize(
    "text",
    ["struct Frontend {};", "class Backend { virtual void f();", "class Backend { virtual void f(int };",
     "class Backend { virtual bool operator==(int a); };", "class Backend { virtual int; };"],
)  # fmt: skip
def test_a_header_that_cannot_be_read_is_an_error(text):
    with pytest.raises(forwarding.HeaderError, match=r"Backend.hpp: (got|has)"):
        forwarding.virtual_functions(text)


@pytest.mark.parametrize(
    ("declaration", "is_refused"),
    [
        ("c10::intrusive_ptr<Work> all_gather_ragged(std::vector<at::Tensor>& a)", True),
        ("c10::intrusive_ptr<Work> reconfigure(const ReconfigureOptions& opts)", True),
        ("void put(const at::Tensor& a, int peer)", True),
        ("void put(at::TensorList all)", True),
        ("void put(const void* data, size_t bytes)", True),
        ("c10::intrusive_ptr<c10::ivalue::Future> later(int a)", True),
        ("c10::intrusive_ptr<Window> new_window(const std::optional<at::Tensor>& a)", True),
        ("std::shared_ptr<Window> window(int a)", True),
        ("void put(Window& a)", True),
        ("void put(std::span<const std::byte> a)", True),
        ("void put(const std::vector<uint8_t>& a)", True),
        ("c10::intrusive_ptr<Backend> merge(const c10::intrusive_ptr<Store>& a)", True),
        ("c10::intrusive_ptr<Work> recv(std::vector<at::Tensor>& a, int b, int c)", False),
        ("at::Tensor allocateTensor(long size, at::TensorOptions options = {})", False),
        ("c10::intrusive_ptr<Options> getBackendOptions()", False),
        ("void connect(const c10::intrusive_ptr<Store>& a, at::Device device)", False),
        ("bool supportsAnything() const", False),
        ("std::shared_ptr<c10::Allocator> getMemAllocator()", False),
        ("void registerHook(std::function<void(std::shared_ptr<WorkInfo>)>&& hook)", False),
    ],
)
def test_a_function_that_moves_data_is_refused_under_loss_unless_it_is_listed(declaration, is_refused):
    (body,) = forwarded(f"virtual {declaration};").values()
    name = declaration.split("(")[0].split()[-1]
    assert body.startswith(f'{{ network_->refuse_loss("{name}");' if is_refused else f"{{ return inner_->{name}(")
    assert f"return inner_->{name}(" in body


def test_a_new_name_of_a_function_goes_to_the_one_that_loses_packets():
    new_names = """virtual void all_gather_single(at::Tensor& output, at::Tensor& /* unused */ input) {
    GUARD();
    return _allgather_base(output, input);
  }"""
    assert forwarded(new_names, "virtual void _allgather_base(int a);") == {
        "all_gather_single": "{ return this->_allgather_base(std::forward<at::Tensor&>(a0), "
        "std::forward<at::Tensor&>(a1)); }"
    }


@pytest.mark.parametrize("call", ["_allgather_base(input, output)", "other(output, input)", "_allgather_base(input)"])
def test_a_function_with_other_arguments_is_no_new_name(call):
    one = f"virtual void f(at::Tensor& output, at::Tensor& input) {{ return {call}; }}"
    assert 'refuse_loss("f")' in forwarded(one)["f"]


def test_gathers_into_one_tensor_are_exempt_and_counted():
    declaration = "c10::intrusive_ptr<Work> {}(at::Tensor& a, at::Tensor& b, int c) {{ return {}(a, b, c); }}"
    one, other = "gather_single", "gather_into_tensor"
    found = forwarded(f"virtual {declaration.format(one, other)}", f"virtual {declaration.format(other, one)}")
    for name in (one, other):
        assert found[name].startswith(f'{{ class_of("gather", message_of(a1)); return inner_->{name}(')


def test_functions_of_two_backends_go_to_the_one_that_can():
    text = header(
        "virtual const std::string getName() const { return name(1); }",
        "virtual c10::intrusive_ptr<Work> gather(",
        "    std::vector<std::vector<at::Tensor>>& out, std::vector<at::Tensor>& in,",
        "    const GatherOptions& opts = GatherOptions());",
        "virtual void check(at::Tensor& tensor);",
        "virtual c10::intrusive_ptr<Window> new_window(const std::optional<at::Tensor>& tensor);",
        "virtual c10::intrusive_ptr<Work> barrier(const BarrierOptions& opts = BarrierOptions());",
        "virtual void monitoredBarrier(const BarrierOptions& opts, bool all = false);",
        "virtual void abort();",
        "virtual bool supportsSplitting() const;",
        "virtual bool supportsCoalescing() const;",
    )
    assert bodies(forwarding.by_device(text, "2.99.0")) == {
        "getName": "{ return cuda_->getName(); }",
        "gather": "{ const Place place = place_of(a0, a1); return begun(place, of(place)->gather("
        "std::forward<std::vector<std::vector<at::Tensor>>&>(a0), std::forward<std::vector<at::Tensor>&>(a1), "
        "std::forward<const GatherOptions&>(a2))); }",
        "check": "{ const Place place = place_of(a0); return of(place)->check(std::forward<at::Tensor&>(a0)); }",
        "new_window": "{ const Place place = place_of(a0); return of(place)->new_window("
        "std::forward<const std::optional<at::Tensor>&>(a0)); }",
        "barrier": "{ return (a0.device_ids.empty() ? host_ : cuda_)->barrier(a0); }",
        "monitoredBarrier": "{ return host_->monitoredBarrier(std::forward<const BarrierOptions&>(a0), "
        "std::forward<bool>(a1)); }",
        "abort": "{ host_->abort(); cuda_->abort(); }",
        "supportsSplitting": "{ return false; }",
        "supportsCoalescing": "{ return cuda_->supportsCoalescing(); }",
    }


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("In file included from lossy_backend.cc:62:\nc10d::Backend::new_window of torch 2.99.0:1:9: error: no match",
         "c10d::Backend::new_window of torch 2.99.0 has a declaration that droptest's generated code does not fit: "
         "no match"),
        ("/x/by_device.h:80:3: error: no begin\nc10d::Backend::put of torch 2.99.0+cpu:1:9:   required from here",
         "c10d::Backend::put of torch 2.99.0+cpu has a declaration that droptest's generated code does not fit: "
         "no begin"),
        ("/x/lossy_backend.cc:62:9: error: 'allreduce' marked 'override', but does not override",
         "the compiler refuses lossy_backend.cc, line 62: 'allreduce' marked 'override', but does not override"),
        ("Ninja is required to load C++ extensions", "it needs a C++17 compiler and ninja"),
    ],
)  # fmt: skip
def test_a_failed_build_says_what_failed(messages, said):
    assert said in build._failure(messages)
