#include "hdf5_library.h"
#include "shardtune/core/error.h"
#include "shardtune/io/hdf5.h"
#include "transfer.h"

namespace shardtune::io {

using namespace detail;

namespace {

/// Fixed-length UTF-8 text of `size` bytes, padded with zeros.
Hdf5Type text_type(std::size_t size) {
  Hdf5Type type(H5Tcopy(H5T_C_S1));
  if (!type || H5Tset_size(type.get(), size) < 0 || H5Tset_strpad(type.get(), H5T_STR_NULLPAD) < 0 ||
      H5Tset_cset(type.get(), H5T_CSET_UTF8) < 0)
    return Hdf5Type();
  return type;
}

std::string place(const std::string& object, const std::string& name) { return object + "@" + name; }

}  // namespace

void Hdf5File::write_raw_attribute(const std::string& object, const std::string& name, std::int64_t type, bool empty,
                                   const void* value) {
  check_usable(true);
  if (!contains(object)) make_groups(object);
  const Hdf5Object owner(H5Oopen(id_, object.c_str(), H5P_DEFAULT));
  if (!owner) failed("open", object);
  // A type of size 0 does not exist: empty text is an attribute without a value.
  const Hdf5Space space(H5Screate(empty ? H5S_NULL : H5S_SCALAR));
  if (!space) failed("create attribute", place(object, name));
  Hdf5Attribute attribute(H5Acreate2(owner.get(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  if (!attribute) failed("create attribute", place(object, name));
  if (!empty && H5Awrite(attribute.get(), type, value) < 0) failed("write attribute", place(object, name));
  if (!attribute.close()) failed("close attribute", place(object, name));
}

void Hdf5File::write_attribute(const std::string& object, const std::string& name, std::int64_t value) {
  check_usable(true);
  write_raw_attribute(object, name, H5T_STD_I64LE, false, &value);
}

void Hdf5File::write_attribute(const std::string& object, const std::string& name, double value) {
  check_usable(true);
  write_raw_attribute(object, name, H5T_IEEE_F64LE, false, &value);
}

void Hdf5File::write_attribute(const std::string& object, const std::string& name, std::string_view value) {
  check_usable(true);
  // A trailing zero byte could not be told from padding.
  SHARDTUNE_CHECK(value.empty() || value.back() != '\0', "{}: attribute {} ends in a zero byte", path_.string(),
                  place(object, name));
  if (value.size() > kMaxAttributeBytes)
    fail(ErrorClass::kBadStorage, "{}: attribute {} has {} bytes, more than the {} allowed; store it as a dataset",
         path_.string(), in_quotes(place(object, name)), value.size(), kMaxAttributeBytes);
  const Hdf5Type type = text_type(value.empty() ? 1 : value.size());
  if (!type) failed("make the type of attribute", place(object, name));
  write_raw_attribute(object, name, type.get(), value.empty(), value.data());
}

std::int64_t Hdf5File::open_attribute(const std::string& object, const std::string& name) const {
  if (!contains(object)) raise(fmt::format("{}: no object {}", path_.string(), in_quotes(object)));
  const htri_t found = H5Aexists_by_name(id_, object.c_str(), name.c_str(), H5P_DEFAULT);
  if (found < 0) failed("look for attribute", place(object, name));
  if (found == 0) raise(fmt::format("{}: no attribute {}", path_.string(), in_quotes(place(object, name))));
  const hid_t attribute = H5Aopen_by_name(id_, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT);
  if (attribute < 0) failed("open attribute", place(object, name));
  return attribute;
}

void Hdf5File::read_number_attribute(const std::string& object, const std::string& name, std::int64_t type,
                                     void* value) const {
  check_usable(false);
  const Hdf5Attribute attribute(open_attribute(object, name));
  const Hdf5Type stored(H5Aget_type(attribute.get()));
  const Hdf5Space space(H5Aget_space(attribute.get()));
  if (!stored || !space) failed("inspect attribute", place(object, name));
  if (H5Tequal(stored.get(), type) <= 0 || H5Sget_simple_extent_type(space.get()) != H5S_SCALAR)
    raise(fmt::format("{}: attribute {} is not a single number of the expected type", path_.string(),
                      in_quotes(place(object, name))));
  if (H5Aread(attribute.get(), type, value) < 0) failed("read attribute", place(object, name));
}

std::int64_t Hdf5File::read_int_attribute(const std::string& object, const std::string& name) const {
  check_usable(false);
  std::int64_t value = 0;
  read_number_attribute(object, name, H5T_STD_I64LE, &value);
  return value;
}

double Hdf5File::read_double_attribute(const std::string& object, const std::string& name) const {
  check_usable(false);
  double value = 0;
  read_number_attribute(object, name, H5T_IEEE_F64LE, &value);
  return value;
}

std::string Hdf5File::read_string_attribute(const std::string& object, const std::string& name) const {
  check_usable(false);
  const Hdf5Attribute attribute(open_attribute(object, name));
  const Hdf5Type stored(H5Aget_type(attribute.get()));
  const Hdf5Space space(H5Aget_space(attribute.get()));
  if (!stored || !space) failed("inspect attribute", place(object, name));
  const H5S_class_t shape = H5Sget_simple_extent_type(space.get());
  const std::size_t size = H5Tget_size(stored.get());
  if (H5Tget_class(stored.get()) != H5T_STRING || H5Tis_variable_str(stored.get()) != 0 || shape == H5S_SIMPLE ||
      size > kMaxAttributeBytes)
    raise(fmt::format("{}: attribute {} is not one text of fixed length and at most {} bytes", path_.string(),
                      in_quotes(place(object, name)), kMaxAttributeBytes));
  if (shape == H5S_NULL) return {};
  std::string text(size, '\0');
  if (H5Aread(attribute.get(), stored.get(), text.data()) < 0) failed("read attribute", place(object, name));
  text.resize(text.find_last_not_of('\0') + 1);
  return text;
}

}  // namespace shardtune::io
