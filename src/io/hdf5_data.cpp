#include <algorithm>
#include <array>
#include <string>

#include "hdf5_library.h"
#include "shardtune/core/error.h"
#include "shardtune/io/hdf5.h"
#include "transfer.h"

namespace shardtune::io {

using namespace detail;

namespace {

/// Dataset creation: one contiguous run, its space taken at once, never filled with zeros first; no time stamps, so that the
/// same content gives the same file.
bool set_layout(const Hdf5Properties& creation) {
  return creation && H5Pset_layout(creation.get(), H5D_CONTIGUOUS) >= 0 &&
         H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY) >= 0 &&
         H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER) >= 0 &&
         H5Pset_obj_track_times(creation.get(), false) >= 0;
}

/// Calls move(memory space, file space, first byte) for pieces of at most max_piece_bytes. Returns "" or the library's text
/// for the first failure, taken before any other call (closing the spaces, too) wipes it out.
template <typename Move>
std::string in_pieces(hid_t dataset, std::uint64_t first, std::uint64_t count, std::size_t element_bytes, Move&& move) {
  const Hdf5Space file_space(H5Dget_space(dataset));
  if (!file_space) return hdf5_text();
  const std::uint64_t most = std::max<std::uint64_t>(max_piece_bytes / element_bytes, 1);
  for (std::uint64_t done = 0; done < count;) {
    const hsize_t start = first + done;
    const hsize_t length = std::min(count - done, most);
    const Hdf5Space memory_space(H5Screate_simple(1, &length, nullptr));
    if (!memory_space || H5Sselect_hyperslab(file_space.get(), H5S_SELECT_SET, &start, nullptr, &length, nullptr) < 0 ||
        move(memory_space.get(), file_space.get(), done * element_bytes) < 0)
      return hdf5_text();
    done += length;
  }
  return {};
}

/// The dtype of an unnamed stored type; kBool when there is none (kBool is always named).
Dtype plain_dtype(hid_t type) {
  constexpr std::array kPlain{Dtype::kU8,  Dtype::kI8,  Dtype::kU16, Dtype::kI16, Dtype::kU32,
                              Dtype::kI32, Dtype::kU64, Dtype::kI64, Dtype::kF32, Dtype::kF64};
  const auto found =
      std::ranges::find_if(kPlain, [&](Dtype dtype) { return H5Tequal(type, stored_type(dtype).type) > 0; });
  return found == kPlain.end() ? Dtype::kBool : *found;
}

}  // namespace

void Hdf5File::write(const std::string& name, Dtype dtype, std::uint64_t elements, std::span<const std::byte> data) {
  check_usable(true);
  const std::size_t element_bytes = dtype_bytes(dtype);
  SHARDTUNE_CHECK(data.size() / element_bytes == elements && data.size() % element_bytes == 0,
                  "{}: dataset '{}': {} elements of {} bytes, but {} bytes given", path_.string(), name, elements,
                  element_bytes, data.size());
  const auto [type, named] = stored_type(dtype);
  const Hdf5Properties creation(H5Pcreate(H5P_DATASET_CREATE));
  const hsize_t length = elements;
  const Hdf5Space space(H5Screate_simple(1, &length, nullptr));
  if (!set_layout(creation) || !space) failed("prepare dataset", name);
  make_groups(name.substr(0, name.rfind('/') == std::string::npos ? 0 : name.rfind('/')));
  Hdf5Dataset dataset(H5Dcreate2(id_, name.c_str(), type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
  if (!dataset) failed("create dataset", name);
  const std::string error = in_pieces(
      dataset.get(), 0, elements, element_bytes, [&, type = type](hid_t memory, hid_t file, std::uint64_t at) {
        return H5Dwrite(dataset.get(), type, memory, file, H5P_DEFAULT, data.data() + at);
      });
  if (!error.empty()) raise(fmt::format("{}: cannot write dataset {}: {}", path_.string(), in_quotes(name), error));
  if (!dataset.close()) failed("close dataset", name);
  if (named) write_attribute(name, "dtype", dtype_name(dtype));
}

void Hdf5File::make_groups(const std::string& name) {
  const Hdf5Properties creation(H5Pcreate(H5P_GROUP_CREATE));
  if (!creation || H5Pset_obj_track_times(creation.get(), false) < 0) failed("prepare group", name);
  for (std::size_t end = 0; end != std::string::npos;) {
    end = name.find('/', end + 1);
    const std::string part = name.substr(0, end);
    if (contains(part)) continue;
    const Hdf5Group group(H5Gcreate2(id_, part.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
    if (!group) failed("create group", part);
  }
}

bool Hdf5File::contains(const std::string& name) const {
  check_usable(false);
  for (std::size_t end = name.find('/', 1);; end = name.find('/', end + 1)) {
    const std::string part = name.substr(0, end);
    if (part.empty() || part == "/") return true;
    const htri_t found = H5Lexists(id_, part.c_str(), H5P_DEFAULT);
    if (found < 0) failed("look for", name);
    if (found == 0) return false;
    if (end == std::string::npos) return true;
  }
}

Hdf5File::DatasetInfo Hdf5File::info(const std::string& name) const {
  if (!contains(name)) raise(fmt::format("{}: no dataset {}", path_.string(), in_quotes(name)));
  const Hdf5Dataset dataset(H5Dopen2(id_, name.c_str(), H5P_DEFAULT));
  if (!dataset) failed("open dataset", name);
  const Hdf5Space space(H5Dget_space(dataset.get()));
  const Hdf5Type type(H5Dget_type(dataset.get()));
  const htri_t named = H5Aexists(dataset.get(), "dtype");
  if (!space || !type || named < 0) failed("inspect dataset", name);
  hsize_t length = 0;
  if (H5Sget_simple_extent_ndims(space.get()) != 1 || H5Sget_simple_extent_dims(space.get(), &length, nullptr) != 1)
    raise(fmt::format("{}: dataset {} has not exactly one dimension", path_.string(), in_quotes(name)));

  DatasetInfo info{plain_dtype(type.get()), length};
  if (named > 0) {
    const std::string text = read_string_attribute(name, "dtype");
    const auto dtype = dtype_from_name(text);
    if (!dtype || !stored_type(*dtype).named || H5Tequal(type.get(), stored_type(*dtype).type) <= 0)
      raise(fmt::format("{}: dataset {}: its attribute 'dtype' {} does not fit its stored type", path_.string(),
                        in_quotes(name), in_quotes(text)));
    info.dtype = *dtype;
  } else if (info.dtype == Dtype::kBool) {
    raise(fmt::format("{}: dataset {} has a type this program does not use", path_.string(), in_quotes(name)));
  }
  return info;
}

void Hdf5File::read(const std::string& name, std::uint64_t first, std::uint64_t count, std::span<std::byte> out) const {
  const DatasetInfo found = info(name);
  const std::size_t element_bytes = dtype_bytes(found.dtype);
  if (first > found.elements || count > found.elements - first)
    raise(fmt::format("{}: dataset {} has {} elements; wanted {} from element {}", path_.string(), in_quotes(name),
                      found.elements, count, first));
  SHARDTUNE_CHECK(out.size() / element_bytes == count && out.size() % element_bytes == 0,
                  "{}: dataset '{}': {} elements of {} bytes do not fill {} bytes", path_.string(), name, count,
                  element_bytes, out.size());
  const Hdf5Dataset dataset(H5Dopen2(id_, name.c_str(), H5P_DEFAULT));
  if (!dataset) failed("open dataset", name);
  const std::string error =
      in_pieces(dataset.get(), first, count, element_bytes, [&](hid_t memory, hid_t file, std::uint64_t at) {
        return H5Dread(dataset.get(), stored_type(found.dtype).type, memory, file, H5P_DEFAULT, out.data() + at);
      });
  if (!error.empty()) raise(fmt::format("{}: cannot read dataset {}: {}", path_.string(), in_quotes(name), error));
}

}  // namespace shardtune::io
