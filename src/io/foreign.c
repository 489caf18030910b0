#include "io/foreign.h"

#include "base/assert.h"

#include <string.h>

/* %1$s is the file's name. */
static const struct {
    const char *magic;
    size_t bytes;
    const char *sentence;
} kinds[] = {
    {"\x1f\x8b", 2, "%1$s is compressed with gzip; unpack it first: gunzip -k '%1$s'"},
    {"\x28\xb5\x2f\xfd", 4, "%1$s is compressed with zstd; unpack it first: unzstd '%1$s'"},
    {"\xfd"
     "7zXZ",
     5, "%1$s is compressed with xz; unpack it first: unxz -k '%1$s'"},
    {"BZh", 3, "%1$s is compressed with bzip2; unpack it first: bunzip2 -k '%1$s'"},
    {"\x04\x22\x4d\x18", 4, "%1$s is compressed with lz4; unpack it first: unlz4 '%1$s'"},
    {"PAR1", 4,
     "%1$s is a Parquet file; make CSV of it first: python3 -c \"import pandas as p; "
     "p.read_parquet('%1$s').to_csv('lengths.csv')\""},
    {"ARROW1", 6,
     "%1$s is an Arrow file; make CSV of it first: python3 -c \"import pandas as p; "
     "p.read_feather('%1$s').to_csv('lengths.csv')\""},
    {"PK\x03\x04", 4,
     "%1$s is a zip archive (npz is one); take an array out of it first: python3 -c \"import numpy as n; "
     "a = n.load('%1$s'); n.save('lengths.npy', a[a.files[0]])\""},
    {"\x89HDF", 4,
     "%1$s is an HDF5 file; make CSV of it first: python3 -c \"import pandas as p; "
     "p.read_hdf('%1$s').to_csv('lengths.csv')\""},
    {"\xff\xfe", 2, "%1$s is UTF-16 text; make UTF-8 of it first: iconv -f UTF-16 -t UTF-8 '%1$s' > lengths.txt"},
    {"\xfe\xff", 2, "%1$s is UTF-16 text; make UTF-8 of it first: iconv -f UTF-16 -t UTF-8 '%1$s' > lengths.txt"},
};

static int is_binary(const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if ((unsigned char)bytes[i] < 9) return 1;
    return 0;
}

ravel_status ravel__foreign_check(const char *name, const char *bytes, size_t count, ravel__wanted wanted,
                                  ravel_error *err) {
    RAVEL_ASSERT(name && (bytes || !count));
    if (wanted == RAVEL__WANTED_ROWS &&
        ((count >= 4 && memcmp(bytes, "PAR1", 4) == 0) || (count >= 6 && memcmp(bytes, "ARROW1", 6) == 0)))
        return ravel_error_set(err, RAVEL_E_DATA,
                               "%s is a%s file; make JSON lines of it first: python3 -m ravel.prepare '%s' rows.jsonl",
                               name, *bytes == 'P' ? " Parquet" : "n Arrow", name);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (count >= kinds[i].bytes && memcmp(bytes, kinds[i].magic, kinds[i].bytes) == 0)
            return ravel_error_set(err, RAVEL_E_DATA, kinds[i].sentence, name); /* NOLINT: the formats are ours */
    int is_npy = count >= 6 && memcmp(bytes, "\x93NUMPY", 6) == 0;
    if (is_npy && wanted == RAVEL__WANTED_ARRAY) return RAVEL_OK;
    if (is_npy) return ravel_error_set(err, RAVEL_E_DATA, "%s is an NPY file where text is wanted", name);
    if (is_binary(bytes, count)) return ravel_error_set(err, RAVEL_E_DATA, "%s is binary data, not text", name);
    return RAVEL_OK;
}
