#pragma once
#include <type_traits>

#include "element_types.h"
#include "shardtune/core/error.h"
#include "shardtune/quant/elements.h"

namespace shardtune::quant {

/// use(pointer) with the elements as const float*, const Bf16* or const Fp16* (without const for Elements).
template <typename Where, typename Use>
void with_pointer(const Where& elements, Use&& use) {
  constexpr bool kConst = std::is_same_v<Where, ConstElements>;
  const auto cast = [&](auto tag) {
    using T = std::conditional_t<kConst, const decltype(tag), decltype(tag)>;
    use(static_cast<T*>(elements.data));
  };
  switch (elements.dtype) {
    case Dtype::kF32: return cast(float{});
    case Dtype::kBF16: return cast(Bf16{});
    case Dtype::kF16: return cast(Fp16{});
    default: break;
  }
  fail(ErrorClass::kInternal, "quantised weights are made from and to F32, BF16 and F16, not {}",
       dtype_name(elements.dtype));
}

}  // namespace shardtune::quant
