/* Sparse blocks: what changed in a block since a version that the receiver holds.
 *
 *     0  elements u32 of the block   4  changed u32 of them   8  records
 *
 *     record    gap u8 0..254, value    that many unchanged elements, then one whose new bytes these are
 *               255                     255 unchanged elements, and no changed one
 *
 * Values are new bytes, not differences, so applying a block twice does no harm, and elements compare as bytes: -0 and
 * 0 differ, equal NaNs do not. At one change in a hundred a record of a 2-byte element takes 3.08 bytes, so a block
 * .0154 of its bytes.
 *
 * Pure functions of their arguments. The comparison exists portably (which compilers vectorise), for AVX2 and for
 * AVX-512, chosen at run time; all give the same bytes. */
#ifndef RAVEL_BASE_SPARSE_H
#define RAVEL_BASE_SPARSE_H

#include <ravel/base.h>

enum { RAVEL__SPARSE_HEADER = 8, RAVEL__SPARSE_SETS = 3 };

/* `fresh` as changes of `base`, both [count] elements of `each` bytes (1, 2, 4, 8), at any address. Writes less than
 * count * each bytes to `out`, and returns how many; 0: the changes take as many bytes as the block, or more. *changed:
 * elements that differ. */
size_t ravel__sparse_encode(const void *base, const void *fresh, size_t count, size_t each, unsigned char *out,
                            size_t *changed);
/* The same by set 0 (portable), 1 (AVX2) or 2 (AVX-512); -1: this processor does not have it. */
int64_t ravel__sparse_encode_by(int set, const void *base, const void *fresh, size_t count, size_t each,
                                unsigned char *out, size_t *changed);

/* Whether encoding may pay: 0 if at each of 16 places of the block so many elements differ that their records would
 * take more than they do. A block with an unchanged eighth in one piece always may; one that changed everywhere costs
 * 16 looks. */
int ravel__sparse_pays(const void *base, const void *fresh, size_t count, size_t each);

/* Positions without values: the gaps of the records alone. The same arrays; at most `room` bytes to `out`, returns how
 * many, -1: there are more. */
int64_t ravel__sparse_positions(const void *base, const void *fresh, size_t count, size_t each, unsigned char *out,
                                size_t room);
/* The next of them, 0: there is none. *position is SIZE_MAX before the first. */
static inline int ravel__sparse_next(const unsigned char **at, const unsigned char *end, size_t *position) {
    size_t next = *position + 1;
    for (; *at < end && **at == 255; ++*at) next += 255;
    if (*at == end) return 0;
    *position = next + *(*at)++;
    return 1;
}
/* As ravel__sparse_encode, of the elements whose bit is set: element i is bit i % 64 of bits[i / 64], which has `count`
 * bits. */
size_t ravel__sparse_encode_marked(const uint64_t *bits, const void *fresh, size_t count, size_t each,
                                   unsigned char *out, size_t *changed);

/* A sparse block that is being applied, from its first element to its last, in pieces of any size. */
typedef struct ravel__sparse {
    const unsigned char *at, *end; /* records that are left */
    size_t each, count;            /* of the block */
    size_t next;                   /* element of the next changed one; SIZE_MAX: the records are over */
    size_t changed, left;          /* changed elements; those that are still to come */
} ravel__sparse;

/* Elements of the block; 0: these are no bytes of a sparse block. *changed (may be NULL): as its header says. */
size_t ravel__sparse_count(const void *bytes, size_t size, size_t *changed);
/* E_DATA: the bytes are not those of a sparse block of `count` elements of `each` bytes. */
ravel_status ravel__sparse_open(ravel__sparse *sparse, const void *bytes, size_t size, size_t count, size_t each,
                                ravel_error *err);
/* Elements first .. first+n of the block, which `block` holds as the base has them, become those of the new version.
 * `first` is where the piece before ended. E_DATA: records are wrong; the block may have been changed, but nothing
 * around it. */
ravel_status ravel__sparse_apply(ravel__sparse *sparse, void *block, size_t first, size_t n, ravel_error *err);
/* After the last piece. E_DATA: records are left. */
ravel_status ravel__sparse_end(const ravel__sparse *sparse, ravel_error *err);

#endif
