// SPDX-License-Identifier: Apache-2.0
// Operations that compute nothing: they write down which buffers a pass uses, and when.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/ops/memory_plan.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// A dry run of a pass in place of an implementation of `form`. Time counts operations. A buffer is in use from the
/// first operation that gets it to the last; one of a reduction that was begun, until join(). Tensors have addresses,
/// but no memory. Each operation checks that its tensors have the elements that its extents say.
class PlannerOps final : public Ops {
 public:
  /// The form is borrowed.
  PlannerOps(const OpsForm& form, int world_size, int rank);

  /// A buffer of the plan. Buffers of one name are added up for people.
  comm::Tensor buffer(std::string name, comm::ElementType type, std::uint64_t elems);
  TokenIds token_buffer(std::string name, std::uint64_t count);
  /// All buffers in the order of the calls, with the times seen so far; first_time is -1 for one that nothing has used.
  const std::vector<PlannedBuffer>& buffers() const { return buffers_; }

  const OpsForm& form() const override { return form_; }
  int world_size() const override { return world_size_; }
  int rank() const override { return rank_; }
  std::unique_ptr<Memory> allocate(std::uint64_t bytes, const std::string& purpose, Content content) override;
  void synchronize() override {}
  void take_tokens(std::span<const std::int32_t> from, TokenIds to) override;
  void group_tokens(std::span<const std::int32_t> /*tokens*/, TokenRange /*range*/, int /*slot*/) override {}
  void zero(comm::Tensor values) override;
  void convert(comm::ConstTensor from, comm::Tensor to) override;
  void embedding_forward(TokenIds tokens, TokenRange range, comm::ConstTensor table, std::int64_t width,
                         comm::Tensor output) override;
  void embedding_backward(TokenIds tokens, TokenRange range, int slot, comm::ConstTensor grad_output,
                          std::int64_t width, comm::Tensor grad_table) override;
  void add_positions(comm::ConstTensor table, std::int64_t batch, std::int64_t length, std::int64_t width,
                     comm::Tensor values) override;
  void positions_backward(comm::ConstTensor grad_values, std::int64_t batch, std::int64_t length, std::int64_t width,
                          GradientMode mode, comm::Tensor grad_table) override;
  void residual_forward(comm::ConstTensor residual, comm::ConstTensor branch, comm::ConstTensor branch_bias,
                        std::int64_t rows, std::int64_t width, comm::Tensor stream) override;
  void residual_backward(comm::ConstTensor grad_stream, std::int64_t rows, std::int64_t width, GradientMode mode,
                         comm::Tensor grad_branch_bias) override;
  void norm_forward(const NormForward& norm) override;
  void norm_backward(const NormBackward& norm) override;
  Operand operand(comm::ConstTensor values, double factor, comm::Tensor room) override;
  void linear_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight* bias,
                      comm::Tensor output) override;
  void linear_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                             comm::Tensor grad_input) override;
  void linear_backward_weight(const ProductShape& shape, const Operand& input, const Operand& grad_output,
                              GradientMode mode, const Weight& weight, const Weight* bias) override;
  void gelu_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight& bias,
                    comm::Tensor saved, comm::Tensor output) override;
  void gelu_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                           comm::ConstTensor saved, GradientMode mode, const Weight& bias,
                           comm::Tensor grad_input) override;
  void gelu_backward_weight(const ProductShape& shape, const Operand& input, const Operand& grad_output,
                            GradientMode mode, const Weight& weight, const Weight& bias) override;
  void attention_forward(comm::ConstTensor qkv, const AttentionShape& shape, comm::Tensor statistics,
                         comm::Tensor output, comm::Tensor scratch) override;
  void attention_backward(comm::ConstTensor grad_output, comm::ConstTensor qkv, comm::ConstTensor output,
                          comm::ConstTensor statistics, const AttentionShape& shape, comm::Tensor grad_qkv,
                          comm::Tensor scratch) override;
  void row_maxima(const LogitBlock& rows) override { use_rows(rows); }
  void exponential_sums(const LogitBlock& rows) override { use_rows(rows); }
  void losses_of_sums(const LogitBlock& rows) override { use_rows(rows); }
  void logits_to_gradient(const LogitBlock& rows) override { use_rows(rows); }
  void cross_entropy(const LogitBlock& rows, Logits /*logits*/) override { use_rows(rows); }
  void begin_sum(comm::Tensor sum, comm::Tensor message, const comm::Message& about) override;
  void begin_all_reduce(comm::Tensor data, comm::ReduceOp op, const comm::Message& about) override;
  void join() override;
  std::unique_ptr<Ranges> make_ranges(std::vector<ParameterRange> ranges) override;
  void sum_squares(const Ranges& /*ranges*/, comm::ConstTensor /*arena*/, Number /*number*/) override {}
  void decide_update(const UpdateRule& /*rule*/, const comm::Message& /*losses*/,
                     const comm::Message& /*squares*/) override {}
  void adamw(const Ranges& /*ranges*/, const AdamWArenas& /*arenas*/, const AdamWStep& /*step*/,
             GradientFactor /*factor*/) override {}
  void round_values(const Ranges& /*ranges*/, comm::ConstTensor /*values*/, comm::Tensor /*rounded*/) override {}
  void copy_to_host(comm::ConstTensor /*from*/, std::span<std::byte> /*to*/) override {}
  void copy_from_host(std::span<const std::byte> /*from*/, comm::Tensor /*to*/) override {}
  void sum_losses(comm::ConstTensor losses, std::int64_t chunk, double divisor, GradientMode mode,
                  Number number) override;
  Numbers numbers() override { return Numbers({}); }

 private:
  std::byte* reserve(std::uint64_t bytes);
  void add(std::string name, std::uint64_t bytes, const std::byte* at);
  void mark(const void* data);
  /// One operation that has these tensors.
  void use(std::initializer_list<comm::ConstTensor> tensors);
  void use_rows(const LogitBlock& rows);
  static void want(const char* what, std::uint64_t got, std::int64_t elems);

  const OpsForm& form_;
  int world_size_;
  int rank_;
  std::uint64_t next_address_;
  int time_ = 0;
  std::vector<PlannedBuffer> buffers_;
  std::map<const std::byte*, std::size_t> by_address_;
  std::vector<const std::byte*> in_flight_;
};

}  // namespace droptest::models
