#include <set>
#include <string>
#include <vector>

#include "hdf5_library.h"
#include "shardtune/core/error.h"
#include "transfer.h"

namespace shardtune::io::detail {
namespace {

constexpr std::size_t kMaxObjects = 65'536;
constexpr int kMaxDepth = 16;
constexpr hsize_t kMaxAttributes = 1'024;

struct Walk {
  const std::filesystem::path& path;
  std::uint64_t file_bytes;
  std::set<haddr_t> seen;

  [[noreturn]] void refuse(const std::string& object, const std::string& reason) const {
    fail(ErrorClass::kBadCheckpoint, "{}: object {}: {}; this program does not write such files and does not read them",
         path.string(), in_quotes(object), reason);
  }
  [[noreturn]] void failed(const std::string& object, const char* action) const {
    fail(ErrorClass::kBadCheckpoint, "{}: object {}: cannot {}: {}", path.string(), in_quotes(object), action,
         hdf5_text());
  }
};

struct Link {
  std::string name;
  H5L_type_t type;
};

herr_t collect_link(hid_t /*group*/, const char* name, const H5L_info_t* info, void* data) {
  auto* links = static_cast<std::vector<Link>*>(data);
  links->push_back({name, info->type});
  return links->size() > kMaxObjects ? 1 : 0;
}

void check_attribute(hid_t object, hsize_t number, const std::string& name, const Walk& walk) {
  const Hdf5Attribute attribute(
      H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, number, H5P_DEFAULT, H5P_DEFAULT));
  if (!attribute) walk.failed(name, "open an attribute");
  const Hdf5Type type(H5Aget_type(attribute.get()));
  const Hdf5Space space(H5Aget_space(attribute.get()));
  if (!type || !space) walk.failed(name, "inspect an attribute");
  const H5T_class_t kind = H5Tget_class(type.get());
  const bool number_type = kind == H5T_INTEGER || kind == H5T_FLOAT;
  if (!number_type && !(kind == H5T_STRING && H5Tis_variable_str(type.get()) == 0))
    walk.refuse(name, "it has an attribute that is neither a number nor text of fixed length");
  if (H5Sget_simple_extent_type(space.get()) == H5S_SIMPLE) walk.refuse(name, "it has an attribute with dimensions");
  if (H5Tget_size(type.get()) > kMaxAttributeBytes)
    walk.refuse(name, fmt::format("it has an attribute of more than {} bytes", kMaxAttributeBytes));
}

void check_attributes(hid_t object, const H5O_info_t& info, const std::string& name, const Walk& walk) {
  if (info.num_attrs > kMaxAttributes) walk.refuse(name, fmt::format("it has {} attributes", info.num_attrs));
  for (hsize_t i = 0; i < info.num_attrs; ++i) check_attribute(object, i, name, walk);
}

/// Bytes that the dataset's shape and type need.
std::uint64_t needed_bytes(hid_t dataset, const std::string& name, const Walk& walk) {
  const Hdf5Space space(H5Dget_space(dataset));
  const Hdf5Type type(H5Dget_type(dataset));
  if (!space || !type) walk.failed(name, "inspect the dataset");
  const H5T_class_t kind = H5Tget_class(type.get());
  if (kind != H5T_INTEGER && kind != H5T_FLOAT) walk.refuse(name, "its elements are not plain numbers");
  hsize_t length = 0;
  if (H5Sget_simple_extent_ndims(space.get()) != 1 || H5Sget_simple_extent_dims(space.get(), &length, nullptr) != 1)
    walk.refuse(name, "it has not exactly one dimension");
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(length, H5Tget_size(type.get()), &bytes)) walk.refuse(name, "its size overflows 64 bits");
  return bytes;
}

void check_dataset(hid_t dataset, const std::string& name, const Walk& walk) {
  const Hdf5Properties creation(H5Dget_create_plist(dataset));
  if (!creation) walk.failed(name, "inspect the dataset");
  if (H5Pget_nfilters(creation.get()) != 0) walk.refuse(name, "it uses filters (compression)");
  const H5D_layout_t layout = H5Pget_layout(creation.get());
  if (layout == H5D_VIRTUAL) walk.refuse(name, "it is a virtual dataset");
  if (layout != H5D_CONTIGUOUS) walk.refuse(name, "its data is not contiguous");
  if (H5Pget_external_count(creation.get()) != 0) walk.refuse(name, "its data lies in an external file");
  const std::uint64_t bytes = needed_bytes(dataset, name, walk);
  if (bytes == 0) return;
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF || H5Dget_storage_size(dataset) != bytes || offset > walk.file_bytes ||
      bytes > walk.file_bytes - offset)
    walk.refuse(name, fmt::format("its {} bytes do not lie inside the file of {} bytes", bytes, walk.file_bytes));
}

void check_group(hid_t group, const std::string& prefix, int depth, Walk& walk) {
  std::vector<Link> links;
  hsize_t next = 0;
  if (H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &next, collect_link, &links) < 0)
    walk.failed(prefix, "list the group");
  for (const Link& link : links) {
    const std::string name = prefix == "/" ? prefix + link.name : prefix + "/" + link.name;
    if (link.type == H5L_TYPE_SOFT) walk.refuse(name, "it is a soft link");
    if (link.type == H5L_TYPE_EXTERNAL) walk.refuse(name, "it is an external link");
    if (link.type != H5L_TYPE_HARD) walk.refuse(name, "it is a link of an unknown kind");
    const Hdf5Object object(H5Oopen(group, link.name.c_str(), H5P_DEFAULT));
    H5O_info_t info{};
    if (!object || H5Oget_info(object.get(), &info) < 0) walk.failed(name, "open it");
    if (!walk.seen.insert(info.addr).second) walk.refuse(name, "it is reached by two names");
    if (walk.seen.size() > kMaxObjects) walk.refuse(name, fmt::format("there are more than {} objects", kMaxObjects));
    check_attributes(object.get(), info, name, walk);
    if (info.type == H5O_TYPE_DATASET) check_dataset(object.get(), name, walk);
    else if (info.type != H5O_TYPE_GROUP) walk.refuse(name, "it is neither a group nor a dataset");
    else if (depth >= kMaxDepth) walk.refuse(name, fmt::format("groups are nested deeper than {}", kMaxDepth));
    else check_group(object.get(), name, depth + 1, walk);
  }
}

}  // namespace

void check_hdf5_content(hid_t file, const std::filesystem::path& path, std::uint64_t file_bytes) {
  Walk walk{path, file_bytes, {}};
  const Hdf5Group root(H5Gopen2(file, "/", H5P_DEFAULT));
  H5O_info_t info{};
  if (!root || H5Oget_info(root.get(), &info) < 0) walk.failed("/", "open it");
  walk.seen.insert(info.addr);
  check_attributes(root.get(), info, "/", walk);
  check_group(root.get(), "/", 1, walk);
}

}  // namespace shardtune::io::detail
