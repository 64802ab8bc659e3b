// Operators against formulas in fp64, backward against central differences.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "shardtune/core/ops.h"

namespace shardtune {
namespace {

at::Tensor wave(std::vector<std::int64_t> shape, double phase) {
  std::int64_t count = 1;
  for (const auto size : shape) count *= size;
  return at::sin(at::arange(count, at::kDouble) * 0.7 + phase).view(shape).to(at::kFloat);
}

double largest(const at::Tensor& difference) { return at::max(at::abs(difference.to(at::kDouble))).item<double>(); }

at::Tensor rms_norm_fp64(const at::Tensor& x, const at::Tensor& w, double epsilon) {
  const at::Tensor d = x.to(at::kDouble);
  return d * at::rsqrt(d.pow(2).mean({1}, true) + epsilon) * w.to(at::kDouble);
}

TEST(RmsNorm, ForwardAndBackward) {
  const double epsilon = 1e-5;
  const at::Tensor x = wave({5, 19}, 0.3), w = wave({19}, 1.1) + 1.5, g = wave({5, 19}, 2.0);
  EXPECT_LE(largest(ops::rms_norm(x, w, epsilon).to(at::kDouble) - rms_norm_fp64(x, w, epsilon)), 1e-6);
  at::Tensor sink = at::zeros({19});
  const at::Tensor gx = ops::rms_norm_backward(g, x, w, epsilon, &sink);
  const at::Tensor gd = g.to(at::kDouble);
  const auto objective = [&](const at::Tensor& xd, const at::Tensor& wd) {
    return (rms_norm_fp64(xd, wd, epsilon) * gd).sum().item<double>();
  };
  const double h = 1e-5;
  for (const std::int64_t i : {0, 7, 18}) {
    at::Tensor up = x.to(at::kDouble), down = up.clone();
    up[2][i] += h;
    down[2][i] -= h;
    EXPECT_NEAR(gx[2][i].item<double>(), (objective(up, w) - objective(down, w)) / (2 * h), 1e-5);
    at::Tensor w_up = w.to(at::kDouble), w_down = w_up.clone();
    w_up[i] += h;
    w_down[i] -= h;
    EXPECT_NEAR(sink[i].item<double>(), (objective(x, w_up) - objective(x, w_down)) / (2 * h), 1e-5);
  }
}

TEST(Rotary, TurnsBackAndKeepsLength) {
  const at::Tensor angle = wave({4, 3}, 0.5) * 9;
  at::Tensor x = wave({4, 2, 6}, 0.1);
  const at::Tensor before = x.clone();
  ops::apply_rotary(x, at::cos(angle), at::sin(angle), false);
  EXPECT_NEAR(x[1][0][0].item<double>(),
              before[1][0][0].item<double>() * std::cos(angle[1][0].item<double>()) -
                  before[1][0][3].item<double>() * std::sin(angle[1][0].item<double>()),
              1e-6);
  EXPECT_LE(largest(at::norm(x, 2, {2}) - at::norm(before, 2, {2})), 1e-5);
  ops::apply_rotary(x, at::cos(angle), at::sin(angle), true);
  EXPECT_LE(largest(x - before), 1e-6);
}

/// Causal attention of one segment, written out in fp64: q [T, H, E], k and v [T, K, E].
at::Tensor attention_fp64(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const std::int64_t tokens = q.size(0), heads = q.size(1), repeat = heads / k.size(1);
  at::Tensor out = at::zeros_like(q);
  for (std::int64_t h = 0; h < heads; ++h) {
    at::Tensor scores = at::mm(q.select(1, h), k.select(1, h / repeat).t()) / std::sqrt(static_cast<double>(q.size(2)));
    scores = scores + at::full({tokens, tokens}, -INFINITY, at::kDouble).triu(1);
    out.select(1, h).copy_(at::mm(at::softmax(scores, 1), v.select(1, h / repeat)));
  }
  return out;
}

TEST(Attention, StaysInsideSegmentsAndSharesKeyHeads) {
  const std::vector<std::int32_t> segments = {3, 3, 5, 1};
  const at::Tensor q = wave({12, 4, 8}, 0.2), k = wave({12, 2, 8}, 1.2), v = wave({12, 2, 8}, 2.2),
                   g = wave({12, 32}, 0.9);
  ops::AttentionSaved saved;
  const at::Tensor out = ops::attention(q, k, v, segments, &saved);
  const auto reference = [&](const at::Tensor& qd, const at::Tensor& kd, const at::Tensor& vd) {
    std::vector<at::Tensor> parts;
    for (std::int64_t first = 0, i = 0; i < 4; first += segments[static_cast<std::size_t>(i++)]) {
      const std::int64_t n = segments[static_cast<std::size_t>(i)];
      parts.push_back(attention_fp64(qd.narrow(0, first, n), kd.narrow(0, first, n), vd.narrow(0, first, n)));
    }
    return at::cat(parts).view({12, 32});
  };
  const at::Tensor qd = q.to(at::kDouble), kd = k.to(at::kDouble), vd = v.to(at::kDouble);
  EXPECT_LE(largest(out.to(at::kDouble) - reference(qd, kd, vd)), 1e-6);

  const auto [gq, gk, gv] = ops::attention_backward(g, q, k, v, segments, saved);
  const auto objective = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return (reference(a, b, c) * g.to(at::kDouble)).sum().item<double>();
  };
  const double h = 1e-5;
  for (const auto& [token, head, column] : {std::tuple{0, 0, 0}, {4, 1, 3}, {8, 1, 7}, {11, 0, 2}}) {
    const auto nudged = [&, token = token, head = head, column = column](const at::Tensor& t, double by) {
      at::Tensor copy = t.clone();
      copy[token][head][column] += by;
      return copy;
    };
    EXPECT_NEAR(gq[token][head][column].item<double>(),
                (objective(nudged(qd, h), kd, vd) - objective(nudged(qd, -h), kd, vd)) / (2 * h), 1e-5);
    EXPECT_NEAR(gk[token][head][column].item<double>(),
                (objective(qd, nudged(kd, h), vd) - objective(qd, nudged(kd, -h), vd)) / (2 * h), 1e-5);
    EXPECT_NEAR(gv[token][head][column].item<double>(),
                (objective(qd, kd, nudged(vd, h)) - objective(qd, kd, nudged(vd, -h))) / (2 * h), 1e-5);
  }
}

TEST(CrossEntropy, LossAndGradientOverManyClasses) {
  const at::Tensor logits = wave({3, 5000}, 0.4) * 20;
  const at::Tensor targets = at::arange(3, at::kLong) * 1777;
  const at::Tensor wide = logits.to(at::kDouble);
  const at::Tensor expected = (at::logsumexp(wide, {1}) - at::gather(wide, 1, targets.unsqueeze(1)).squeeze(1)).sum();
  at::Tensor work = logits.clone();
  EXPECT_NEAR(ops::cross_entropy_in_place(work, targets, 0.5, true), expected.item<double>(),
              1e-5 * expected.item<double>());
  at::Tensor gradient = at::softmax(wide, 1);
  for (std::int64_t n = 0; n < 3; ++n) gradient[n][targets[n].item<std::int64_t>()] -= 1.0;
  EXPECT_LE(largest(work.to(at::kDouble) - gradient * 0.5), 1e-6);
}

TEST(Embedding, GradientAddsRepeatedIds) {
  const at::Tensor ids = at::tensor({2, 0, 2}, at::kLong);
  at::Tensor sink = at::zeros({4, 2});
  at::Tensor gradient = at::arange(6, at::kFloat).view({3, 2});
  ops::add_embedding_gradient(sink, gradient, ids, /*padding=*/-1);
  EXPECT_TRUE(at::equal(sink, at::tensor({2.f, 3.f, 0.f, 0.f, 4.f, 6.f, 0.f, 0.f}).view({4, 2})));
}

TEST(Embedding, PaddingRowGetsNoGradient) {  // torch.nn.Embedding(padding_idx)
  const at::Tensor ids = at::tensor({2, 0, 2}, at::kLong);
  at::Tensor sink = at::zeros({3, 1});
  ops::add_embedding_gradient(sink, at::ones({3, 1}), ids, /*padding=*/2);
  EXPECT_TRUE(at::equal(sink, at::tensor({1.f, 0.f, 0.f}).view({3, 1})));
}

TEST(Linear, Bf16RoundsOnce) {
  const at::Tensor x = wave({4, 64}, 0.1).to(at::kBFloat16), w = wave({8, 64}, 0.7).to(at::kBFloat16);
  const at::Tensor exact = at::mm(x.to(at::kDouble), w.to(at::kDouble).t());
  const at::Tensor found = ops::linear(x, w);
  EXPECT_EQ(found.scalar_type(), at::kBFloat16);
  // One rounding to 8 bits of mantissa: at most 2^-8 of the value, plus the fp32 sum's own error.
  EXPECT_LE(largest((found.to(at::kDouble) - exact).div(at::abs(exact) + 1e-2)), 1.0 / 256);
}

TEST(Swiglu, ForwardAndBackward) {
  const at::Tensor gate = wave({3, 5}, 0.2) * 3, up = wave({3, 5}, 0.8), g = wave({3, 5}, 1.4);
  const at::Tensor gd = gate.to(at::kDouble), s = at::sigmoid(gd);
  EXPECT_LE(largest(ops::swiglu(gate, up).to(at::kDouble) - gd * s * up), 1e-6);
  at::Tensor gate_gradient = gate.clone(), up_gradient = up.clone();  // overwritten
  ops::swiglu_backward(g, gate_gradient, up_gradient);
  EXPECT_LE(largest(gate_gradient.to(at::kDouble) - g * up * s * (1 + gd * (1 - s))), 1e-6);
  EXPECT_LE(largest(up_gradient.to(at::kDouble) - g * gd * s), 1e-6);
}

TEST(Swiglu, FarOutAndNotANumber) {  // silu(x) tends to 0 and to x
  const at::Tensor gate = at::tensor({-200.f, -88.f, 88.f, 200.f, NAN}), up = at::ones({5}).mul_(2);
  const at::Tensor y = ops::swiglu(gate, up);
  EXPECT_NEAR(y[0].item<float>(), 0, 1e-30);
  EXPECT_NEAR(y[1].item<float>(), 0, 1e-30);
  EXPECT_EQ(y[2].item<float>(), 176.f);
  EXPECT_EQ(y[3].item<float>(), 400.f);
  EXPECT_TRUE(std::isnan(y[4].item<float>()));
}

TEST(CrossEntropy, NotANumberIsNotHidden) {
  at::Tensor logits = at::zeros({1, 100});
  logits[0][37] = NAN;
  EXPECT_TRUE(std::isnan(ops::cross_entropy_in_place(logits, at::zeros({1}, at::kLong), 1.0, true)));
}

TEST(Attention, NewTokensOverKeptOnes) {
  // Sequences of 9, 4 and 6 tokens, of which 1, all 4 and 3 are new.
  const std::vector<std::int64_t> lengths = {9, 4, 6};
  const std::vector<std::int32_t> now = {1, 4, 3};
  for (const std::int64_t kv_heads : {1, 2, 4}) {
    std::vector<at::Tensor> queries, keys, values, expected;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const auto n = lengths[i];
      const double phase = 0.3 * static_cast<double>(i);
      const at::Tensor q = wave({n, 4, 8}, 0.2 + phase);
      // Rows of a longer tensor, as a cache has them.
      keys.push_back(wave({n + 5, kv_heads, 8}, 1.2 + phase).narrow(0, 0, n));
      values.push_back(wave({n + 5, kv_heads, 8}, 2.2 + phase).narrow(0, 0, n));
      queries.push_back(q.narrow(0, n - now[i], now[i]));
      expected.push_back(attention_fp64(q.to(at::kDouble), keys[i].to(at::kDouble), values[i].to(at::kDouble))
                             .narrow(0, n - now[i], now[i]));
    }
    const at::Tensor out = ops::cached_attention(at::cat(queries), now, keys, values);
    EXPECT_LE(largest(out.to(at::kDouble) - at::cat(expected).view({8, 32})), 1e-6) << kv_heads;
    std::vector<at::Tensor> half_keys, half_values;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      half_keys.push_back(keys[i].to(at::kBFloat16));
      half_values.push_back(values[i].to(at::kBFloat16));
    }
    const at::Tensor half = ops::cached_attention(at::cat(queries).to(at::kBFloat16), now, half_keys, half_values);
    EXPECT_EQ(half.scalar_type(), at::kBFloat16);
    EXPECT_LE(largest(half.to(at::kDouble) - at::cat(expected).view({8, 32})), 2e-2) << kv_heads;
  }
}

TEST(Largest, LowestOfEqualOnesInAllPieces) {
  at::Tensor logits = wave({3, 100}, 0.4);
  logits[0][17] = logits[0][90] = 5;
  logits[1][0] = logits[1][99] = 7;
  logits[2].fill_(-3);
  const std::vector<std::int64_t> expected = {17, 0, 0};
  for (const auto type : {at::kFloat, at::kBFloat16})
    for (const std::int64_t piece : {100, 33, 7, 1}) {
      ops::Largest seen;
      for (std::int64_t first = 0; first < 100; first += piece)
        ops::add_largest(
            seen, logits.narrow(1, first, std::min<std::int64_t>(piece, 100 - first)).contiguous().to(type), first);
      EXPECT_EQ(seen.classes, expected) << piece;
      EXPECT_EQ(seen.logits, (std::vector<float>{5, 7, -3}));
    }
}

TEST(Largest, EveryPlaceOfARow) {
  for (std::int64_t place = 0; place < 37; ++place) {
    at::Tensor logits = wave({1, 37}, 0.4);
    logits[0][place] = 2;
    ops::Largest seen;
    ops::add_largest(seen, logits, 0);
    EXPECT_EQ(seen.classes[0], place);
  }
}

TEST(Attention, KeepsItsResultOnce) {
  for (const std::vector<std::int32_t>& segments : {std::vector<std::int32_t>{6, 6}, {5, 7}}) {
    ops::AttentionSaved saved;
    const at::Tensor out =
        ops::attention(wave({12, 4, 8}, 0.2), wave({12, 2, 8}, 1.2), wave({12, 2, 8}, 2.2), segments, &saved);
    for (const at::Tensor& kept : saved.outputs) EXPECT_TRUE(kept.is_alias_of(out));
  }
}

}  // namespace
}  // namespace shardtune
