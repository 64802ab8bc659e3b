// HDF5 files that this program does not write, made with the library's own calls; each is refused with its reason.
#include <functional>

#include "io/hdf5_library.h"
#include "shardtune/io/hdf5.h"
#include "support.h"

namespace shardtune::io {
namespace {

using namespace shardtune::io::testing;
using namespace shardtune::io::detail;

/// Makes a file in the newest format, lets `fill` put something into it, and expects it to be refused.
void refused(std::initializer_list<std::string> words, const std::function<void(hid_t file, const TempFolder&)>& fill,
             H5F_libver_t format = H5F_LIBVER_V110) {
  start_hdf5();
  const TempFolder folder;
  {
    const Hdf5Properties access(H5Pcreate(H5P_FILE_ACCESS));
    ASSERT_GE(H5Pset_libver_bounds(access.get(), format, H5F_LIBVER_V110), 0);
    const Hdf5FileId file(H5Fcreate((folder / "x.h5").c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.get()));
    ASSERT_TRUE(file);
    fill(file.get(), folder);
  }
  expect_error(ErrorClass::kBadCheckpoint, words, [&] { Hdf5File::open(folder / "x.h5"); });
}

Hdf5Space space_of(std::vector<hsize_t> size) {
  return Hdf5Space(H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr));
}

void make_dataset(hid_t file, const char* name, hid_t type, const Hdf5Space& space, hid_t creation = H5P_DEFAULT) {
  const Hdf5Dataset dataset(H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, creation, H5P_DEFAULT));
  ASSERT_TRUE(dataset) << hdf5_text();
}

TEST(Hdf5Hostile, ExternalStorage) {
  refused({"x.h5", "'/d'", "external file"}, [](hid_t file, const TempFolder&) {
    const Hdf5Properties creation(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_external(creation.get(), "/etc/passwd", 0, 100);
    make_dataset(file, "d", H5T_STD_U8LE, space_of({100}), creation.get());
  });
}

TEST(Hdf5Hostile, Links) {
  refused({"'/s'", "soft link"},
          [](hid_t file, const TempFolder&) { H5Lcreate_soft("/nowhere", file, "s", H5P_DEFAULT, H5P_DEFAULT); });
  refused({"'/e'", "external link"}, [](hid_t file, const TempFolder&) {
    H5Lcreate_external("other.h5", "/d", file, "e", H5P_DEFAULT, H5P_DEFAULT);
  });
  refused({"'/g/s'", "soft link"}, [](hid_t file, const TempFolder&) {
    const Hdf5Group group(H5Gcreate2(file, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Lcreate_soft("/g", group.get(), "s", H5P_DEFAULT, H5P_DEFAULT);
  });
  refused({"two names"}, [](hid_t file, const TempFolder&) {
    const Hdf5Group group(H5Gcreate2(file, "a", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Lcreate_hard(file, "a", file, "b", H5P_DEFAULT, H5P_DEFAULT);
  });
  refused({"'/g/loop'", "two names"}, [](hid_t file, const TempFolder&) {
    const Hdf5Group group(H5Gcreate2(file, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Lcreate_hard(file, "/", group.get(), "loop", H5P_DEFAULT, H5P_DEFAULT);
  });
  refused({"nested deeper"}, [](hid_t file, const TempFolder&) {
    std::string name;
    for (int i = 0; i < 20; ++i) {
      name += "/g";
      const Hdf5Group group(H5Gcreate2(file, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    }
  });
}

TEST(Hdf5Hostile, FiltersAndLayouts) {
  refused({"'/d'", "filters"}, [](hid_t file, const TempFolder&) {
    const Hdf5Properties creation(H5Pcreate(H5P_DATASET_CREATE));
    const hsize_t chunk = 10;
    H5Pset_chunk(creation.get(), 1, &chunk);
    ASSERT_GE(H5Pset_shuffle(creation.get()), 0);
    make_dataset(file, "d", H5T_STD_U16LE, space_of({100}), creation.get());
  });
  refused({"'/d'", "not contiguous"}, [](hid_t file, const TempFolder&) {
    const Hdf5Properties creation(H5Pcreate(H5P_DATASET_CREATE));
    const hsize_t chunk = 10;
    H5Pset_chunk(creation.get(), 1, &chunk);
    make_dataset(file, "d", H5T_STD_U16LE, space_of({100}), creation.get());
  });
  refused({"'/d'", "not contiguous"}, [](hid_t file, const TempFolder&) {
    const Hdf5Properties creation(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_layout(creation.get(), H5D_COMPACT);
    make_dataset(file, "d", H5T_STD_U16LE, space_of({10}), creation.get());
  });
  refused({"'/d'", "virtual"}, [](hid_t file, const TempFolder&) {
    const Hdf5Properties creation(H5Pcreate(H5P_DATASET_CREATE));
    const Hdf5Space space = space_of({10});
    ASSERT_GE(H5Pset_virtual(creation.get(), space.get(), "/etc/passwd", "/x", space.get()), 0);
    make_dataset(file, "d", H5T_STD_U8LE, space, creation.get());
  });
  // Declared but never stored: nothing in the file stands behind its size.
  refused({"'/d'", "do not lie inside the file"},
          [](hid_t file, const TempFolder&) { make_dataset(file, "d", H5T_STD_U8LE, space_of({hsize_t{1} << 40})); });
}

TEST(Hdf5Hostile, ShapesAndTypes) {
  refused({"'/d'", "one dimension"}, [](hid_t file, const TempFolder&) {
    make_dataset(file, "d", H5T_STD_U8LE, space_of(std::vector<hsize_t>(32, 1)));
  });
  refused({"'/d'", "one dimension"}, [](hid_t file, const TempFolder&) {
    make_dataset(file, "d", H5T_STD_U8LE, Hdf5Space(H5Screate(H5S_SCALAR)));
  });
  refused({"'/d'", "not plain numbers"}, [](hid_t file, const TempFolder&) {
    const Hdf5Type type(H5Tcreate(H5T_COMPOUND, 8));
    H5Tinsert(type.get(), "a", 0, H5T_STD_U32LE);
    make_dataset(file, "d", type.get(), space_of({2}));
  });
  refused({"'/d'", "not plain numbers"}, [](hid_t file, const TempFolder&) {
    const Hdf5Type type(H5Tvlen_create(H5T_STD_U8LE));
    make_dataset(file, "d", type.get(), space_of({2}));
  });
  refused({"'/d'", "not plain numbers"},
          [](hid_t file, const TempFolder&) { make_dataset(file, "d", H5T_STD_REF_OBJ, space_of({2})); });
  refused({"'/t'", "neither a group nor a dataset"}, [](hid_t file, const TempFolder&) {
    const Hdf5Type type(H5Tcopy(H5T_STD_U8LE));
    H5Tcommit2(file, "t", type.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  });
}

void make_attribute(hid_t object, hid_t type, const Hdf5Space& space) {
  const Hdf5Attribute attribute(H5Acreate2(object, "a", type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  ASSERT_TRUE(attribute) << hdf5_text();
}

TEST(Hdf5Hostile, Attributes) {
  const auto scalar = [] { return Hdf5Space(H5Screate(H5S_SCALAR)); };
  refused({"'/'", "neither a number nor text"}, [&](hid_t file, const TempFolder&) {
    const Hdf5Type type(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), H5T_VARIABLE);
    make_attribute(file, type.get(), scalar());
  });
  refused({"'/'", "attribute of more than 65536 bytes"}, [&](hid_t file, const TempFolder&) {
    const Hdf5Type type(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), 1'000'000);
    make_attribute(file, type.get(), scalar());
  });
  refused({"'/'", "attribute with dimensions"},
          [](hid_t file, const TempFolder&) { make_attribute(file, H5T_STD_U8LE, space_of({100})); });
}

TEST(Hdf5Hostile, OlderFormat) {
  refused(
      {"superblock version 0", "expected 3"}, [](hid_t, const TempFolder&) {}, H5F_LIBVER_EARLIEST);
}

TEST(Hdf5Hostile, NotHdf5) {
  const TempFolder folder;
  write_bytes(folder / "x.h5", "short");
  expect_error(ErrorClass::kBadCheckpoint, {"x.h5", "not an HDF5 file", "5 bytes"},
               [&] { Hdf5File::open(folder / "x.h5"); });
  expect_error(ErrorClass::kBadCheckpoint, {"a folder"}, [&] { Hdf5File::open(folder.path()); });
}

TEST(Hdf5Hostile, OpenFlagAndDamagedSuperblock) {
  const TempFolder folder;
  Hdf5File::create(folder / "x.h5").close();
  const std::string whole = read_bytes(folder / "x.h5");
  std::string text = whole;
  text[11] = 1;
  write_bytes(folder / "x.h5", text);
  expect_error(ErrorClass::kBadCheckpoint, {"not closed by its writer"}, [&] { Hdf5File::open(folder / "x.h5"); });
  for (std::size_t i = 12; i < 48; ++i) {
    text = whole;
    text[i] = static_cast<char>(text[i] ^ 0x10);
    write_bytes(folder / "x.h5", text);
    EXPECT_THROW(Hdf5File::open(folder / "x.h5"), Error) << i;
  }
}

TEST(Hdf5Hostile, DtypeAttributeThatDoesNotFit) {
  start_hdf5();
  const TempFolder folder;
  Hdf5File file = Hdf5File::create(folder / "x.h5");
  const std::vector<float> data{1};
  file.write("/d", Dtype::kF32, 1, bytes_of(data));
  file.write_attribute("/d", "dtype", "BF16");
  file.close();
  const Hdf5File again = Hdf5File::open(folder / "x.h5");
  expect_error(ErrorClass::kBadCheckpoint, {"'/d'", "'dtype' 'BF16' does not fit"}, [&] { again.info("/d"); });
}

}  // namespace
}  // namespace shardtune::io
