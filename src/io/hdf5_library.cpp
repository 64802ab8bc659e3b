#include "hdf5_library.h"

#include <algorithm>
#include <bit>

#include "shardtune/core/error.h"

namespace shardtune::io::detail {

static_assert(std::endian::native == std::endian::little, "files are little-endian and are read without conversion");
static_assert(sizeof(hid_t) == sizeof(std::int64_t), "Hdf5File keeps identifiers as 64-bit integers");

void start_hdf5() {
  static const bool started = [] {
    H5dont_atexit();  // must be the first call; fails when another part of the process used HDF5 before, which is fine
    const bool fine =
        H5open() >= 0 && H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0 && H5PLset_loading_state(0) >= 0;
    if (!fine)
      fail(ErrorClass::kBadNode, "the HDF5 library {}.{}.{} does not start", H5_VERS_MAJOR, H5_VERS_MINOR,
           H5_VERS_RELEASE);
    return fine;
  }();
  static_cast<void>(started);
}

namespace {

struct Walked {
  std::string inner;
  std::string outer;
};

herr_t take_entry(unsigned number, const H5E_error2_t* entry, void* data) {
  auto* walked = static_cast<Walked*>(data);
  const std::string text = entry->desc != nullptr ? entry->desc : "";
  if (number == 0) walked->inner = text;
  walked->outer = text;
  return 0;
}

/// The system's reason where HDF5 has one among addresses and offsets: "... error message = 'No space left on device', buf =
/// ...".
std::string reason_in(const std::string& text) {
  constexpr std::string_view kBefore = "error message = '";
  const auto begin = text.find(kBefore);
  const auto end = begin == std::string::npos ? begin : text.find('\'', begin + kBefore.size());
  return end == std::string::npos ? text : text.substr(begin + kBefore.size(), end - begin - kBefore.size());
}

}  // namespace

std::string hdf5_text() {
  Walked walked;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_entry, &walked);
  if (walked.inner.empty()) return "HDF5 gives no reason";
  const std::string reason = reason_in(walked.inner);
  std::string text = walked.outer == walked.inner ? reason : walked.outer + ": " + reason;
  std::ranges::replace(text, '\n', ' ');
  return "HDF5 says: " + text;
}

StoredType stored_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kF8E4M3:
    case Dtype::kF8E5M2: return {H5T_STD_U8LE, true};
    case Dtype::kF16:
    case Dtype::kBF16: return {H5T_STD_U16LE, true};
    case Dtype::kU8: return {H5T_STD_U8LE, false};
    case Dtype::kI8: return {H5T_STD_I8LE, false};
    case Dtype::kU16: return {H5T_STD_U16LE, false};
    case Dtype::kI16: return {H5T_STD_I16LE, false};
    case Dtype::kU32: return {H5T_STD_U32LE, false};
    case Dtype::kI32: return {H5T_STD_I32LE, false};
    case Dtype::kU64: return {H5T_STD_U64LE, false};
    case Dtype::kI64: return {H5T_STD_I64LE, false};
    case Dtype::kF32: return {H5T_IEEE_F32LE, false};
    case Dtype::kF64: return {H5T_IEEE_F64LE, false};
  }
  fail(ErrorClass::kInternal, "no stored type for dtype number {}", static_cast<int>(dtype));
}

}  // namespace shardtune::io::detail
