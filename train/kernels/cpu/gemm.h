/* Matrix products. Body: included once per instruction set (see simd.h).
 *
 * One small product does all the work, for attention too: `tile` keeps some rows x vectors of C in registers and walks
 * k, a broadcast of A times a row of B at each step:
 *
 *            B [k][64]  (four vectors of 16)                    MR = 6, NV = 4: 24 vectors of C, 4 of B, 1 of A
 *     A      ----------------
 *     6 rows C  C  C  C          each element of C is one chain a0 b0 + a1 b1 + ... in the order of k, whatever
 *            C  C  C  C          the sizes of the product and wherever the element lies
 *
 * A large product packs both sides, a part of k (at most KC) at a time. The shorter side of C is packed once, for all
 * threads; of the longer side each thread packs what it owns, and reads little of what others wrote:
 *
 *     rows are owned (n < 2 m)           B packed  [panel][k][GN]   shared          A packed  [group][k][GM]   own
 *     columns are owned (n >= 2 m)       A packed  [group][k][GM]   shared          B packed  [panel][k][GN]   own
 *
 * A pass is two jobs: all threads pack the shared side, for as many parts of k as there is room for; then tasks are
 * blocks of the owned side: pack it, and multiply it by the shared side. A tile is GM x GN, as tall as registers allow.
 * The groups that are packed at a time (MC) and a chunk of B stay in the second-level cache while all their tiles are
 * made. Blocks are large first and small then, so that threads end together, even if one runs at half the speed of
 * the others (virtual machines); but not smaller than SMALL rows or columns, because each reads the shared side from
 * the cache that all threads share: 24 rows are 12 operations per byte, 12 rows only 6. Where blocks of LEAST are too
 * few, the shared side is cut too. The cut depends on the number of threads; results do not, because each element is
 * one chain per part of k, and the parts are added in their order.
 *
 * With AVX512-BF16 (CPU_PAIRS) a term may be a pair of bf16: A is rounded while it is packed, and pairs take the places
 * of floats.
 *
 * A B in bf16 (weights) is widened while it is packed, which is exact: a product has the bits of one with the same
 * values in f32. */

enum { GM = CPU_GEMM_ROWS, GN = CPU_GEMM_VECTORS * CPU_LANES }; /* the tile of large products */
enum { KC = 640, NC = 4096 };                                   /* of k, and of the shared side, packed at a time */
enum { MC = 480 / GM, CHUNK = 256 / GN * GN };                  /* groups of A and columns of B at a time */
enum { SMALL = 24, LEAST = 36, SHORTEST = 128 };                /* of a block's owned side, and of its shared side */

INLINE void tile(int mr, int nv, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b, int64_t ldb,
                 float *c, int64_t ldc, int add) {
    vf sum[(int)GM > (int)MR ? GM : MR][NV];
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < nv; j++) sum[i][j] = (vf){0};
    }
    for (; k > 0; k--, a += a_col, b += ldb) {
        vf row[NV];
        UNROLL
        for (int j = 0; j < nv; j++) row[j] = load(b + j * LANES);
        UNROLL
        for (int i = 0; i < mr; i++) {
            vf x = splat(a[i * a_row]);
            UNROLL
            for (int j = 0; j < nv; j++) sum[i][j] += x * row[j];
        }
    }
    UNROLL
    for (int i = 0; i < mr; i++) {
        UNROLL
        for (int j = 0; j < nv; j++) {
            float *to = c + i * ldc + j * LANES;
            if (add) sum[i][j] += load(to);
            store(to, sum[i][j]);
        }
    }
}

/* The same of pairs of bf16, two terms at a time: a and b hold a pair in the place of a float. */
#if CPU_PAIRS
INLINE void tile_pairs(int64_t k, const float *a, const float *b, float *c, int64_t ldc, int add) {
    __m512 sum[GM][CPU_GEMM_VECTORS];
    UNROLL
    for (int i = 0; i < GM; i++) {
        UNROLL
        for (int j = 0; j < CPU_GEMM_VECTORS; j++) sum[i][j] = _mm512_setzero_ps();
    }
    for (; k > 0; k--, a += GM, b += GN) {
        __m512bh row[CPU_GEMM_VECTORS];
        UNROLL
        for (int j = 0; j < CPU_GEMM_VECTORS; j++) row[j] = (__m512bh)load(b + j * LANES);
        UNROLL
        for (int i = 0; i < GM; i++) {
            __m512bh x = (__m512bh)splat(a[i]);
            UNROLL
            for (int j = 0; j < CPU_GEMM_VECTORS; j++) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], x, row[j]);
        }
    }
    UNROLL
    for (int i = 0; i < GM; i++) {
        UNROLL
        for (int j = 0; j < CPU_GEMM_VECTORS; j++) {
            float *to = c + i * ldc + j * LANES;
            store(to, add ? (vf)sum[i][j] + load(to) : (vf)sum[i][j]);
        }
    }
}
#endif

/* Full tiles of every width, and of every height at full width; what is rarer loops over single rows. */
typedef void tile_fn(int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b, int64_t ldb, float *c,
                     int64_t ldc, int add);

#define TILE(mr, nv)                                                                                                   \
    static                                                                                                             \
        __attribute__((noinline)) void tile_##mr##_##nv(int64_t k, const float *a, int64_t a_row, int64_t a_col,       \
                                                        const float *b, int64_t ldb, float *c, int64_t ldc, int add) { \
        tile(mr, nv, k, a, a_row, a_col, b, ldb, c, ldc, add);                                                         \
    }
#define TILES(nv) TILE(1, nv) TILE(2, nv) TILE(3, nv) TILE(4, nv) TILE(5, nv) TILE(6, nv)
/* clang-format off */
#define TILE_ROW(nv) \
    { tile_1_##nv, tile_2_##nv, tile_3_##nv, tile_4_##nv, tile_5_##nv, tile_6_##nv }
/* clang-format on */
TILES(1)
TILES(2)
#if CPU_NV == 4
TILES(3)
TILES(4)
#endif

static tile_fn *const tiles[NV][MR] = {TILE_ROW(1), TILE_ROW(2),
#if CPU_NV == 4
                                       TILE_ROW(3), TILE_ROW(4)
#endif
};

/* C [m, vectors * LANES] from `vectors` <= NV; C must have room for whole vectors. */
INLINE void tile_rows(int64_t m, int vectors, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                      int64_t ldb, float *c, int64_t ldc, int add) {
    for (; m > 0; m -= MR, a += MR * a_row, c += MR * ldc)
        tiles[vectors - 1][m < MR ? m - 1 : MR - 1](k, a, a_row, a_col, b, ldb, c, ldc, add);
}

/* ---- packing -------------------------------------------------------------------------------------------- */

/* b[k][j] = source[k * row + j * col] for `width` columns, 0 behind them up to `wide`, a whole number of vectors. */
static void pack_columns(float *b, const float *source, int64_t k, int64_t width, int64_t wide, int64_t row,
                         int64_t col) {
    if (col == 1) {
        for (int64_t i = 0; i < k; i++, b += wide, source += row) {
            memcpy(b, source, (size_t)width * sizeof *b);
            if (width < wide) memset(b + width, 0, (size_t)(wide - width) * sizeof *b);
        }
        return;
    }
    if (width < wide) memset(b, 0, (size_t)(k * wide) * sizeof *b);
    for (int64_t j = 0; j < width; j += LANES)
        transpose(b + j, wide, source + j * col, col, k, train__min(LANES, width - j));
}

/* The same of a source in bf16. */
static void pack_narrow(float *b, const uint16_t *source, int64_t k, int64_t width, int64_t wide, int64_t row,
                        int64_t col) {
    if (col == 1) {
        for (int64_t i = 0; i < k; i++, b += wide, source += row)
            for (int64_t j = 0; j < wide; j += LANES) store(b + j, j < width ? widen_at(source, j, width) : (vf){0});
        return;
    }
    if (width < wide) memset(b, 0, (size_t)(k * wide) * sizeof *b);
    for (int64_t j = 0; j < width; j += LANES)
        transpose_narrow(b + j, wide, source + j * col, col, k, train__min(LANES, width - j));
}

/* Squares of GM x LANES of rows of A, turned: to[k * GM + r] = from[r * row + k]. Stores whole vectors one over the
 * other, so LANES - GM elements behind the last are written too. */
#if CPU_LANES >= CPU_GEMM_ROWS
INLINE void turn_rows(float *to, const float *from, int64_t row) {
    vf in[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++) in[i] = i < GM ? load(from + i * row) : (vf){0};
    turn(in);
    UNROLL
    for (int i = 0; i < LANES; i++) store(to + i * GM, in[i]);
}
#endif

/* a[k][GM] from `rows` <= GM rows of A, 0 behind them. */
static void pack_group(float *a, const float *source, int64_t rows, int64_t k, int64_t row, int64_t col) {
    RAVEL_ASSERT(rows > 0 && rows <= GM);
    int64_t i = 0;
#if CPU_LANES >= CPU_GEMM_ROWS
    if (col == 1 && rows == GM)
        for (; i + LANES <= k; i += LANES) {
            for (int64_t r = GM; r < 2 * GM; r++) __builtin_prefetch(source + r * row + i); /* of the next group */
            turn_rows(a + i * GM, source + i, row);
        }
#endif
    for (; i < k; i++)
        for (int64_t r = 0; r < GM; r++) a[i * GM + r] = r < rows ? source[r * row + i * col] : 0;
}

/* A group's elements, and room for what turn_rows writes behind it. */
INLINE int64_t group_elements(int64_t k) {
    return GM * k + LANES;
}

/* Whole groups of an A whose columns are contiguous: all groups of a k at a time, so that lines are read once. */
static void pack_groups(float *a, const float *source, int64_t groups, int64_t k, int64_t col) {
    for (int64_t i = 0; i < k; i++)
        for (int64_t g = 0; g < groups; g++) {
            const float *from = source + i * col + g * GM;
            __builtin_prefetch(from + 2 * col);
            memcpy(a + g * group_elements(k) + i * GM, from, GM * sizeof *a);
        }
}

/* ---- large products ------------------------------------------------------------------------------------- */

typedef struct gemm {
    train_device *device;
    const train_matmul *x;
    int64_t a_row, a_col, b_row, b_col, ldc;
    int columns;                             /* are owned; otherwise rows are */
    int pairs;                               /* of bf16 are multiplied: a term is two of the product's k */
    int64_t terms;                           /* of all parts */
    int64_t own, own_unit, shared_unit;      /* elements of the owned side; of a group or panel of either side */
    int64_t part;                            /* of k */
    int64_t k0, parts;                       /* this pass: the number of parts, and where the first begins */
    int64_t first, count;                    /* rows or columns of the shared side: the first, their number */
    int64_t packed;                          /* rows or columns of the shared side that a task packs */
    int64_t splits, span;                    /* tasks of a block; elements of the shared side of a task */
    int64_t large, large_units, small_units; /* blocks of the owned side: number of large ones; units of each */
} gemm;

/* A block of C, and what it is made of. */
typedef struct gemm_block {
    const float *a, *b; /* packed */
    int64_t row, rows, column, columns, k;
    int add;
} gemm_block;

INLINE int64_t units_of(int64_t elements, int64_t unit) {
    return (elements + unit - 1) / unit;
}

INLINE int64_t unit_elements(int columns, int64_t k) {
    return columns ? GN * k : group_elements(k);
}

/* Terms of part p of the pass. */
INLINE int64_t part_terms(const gemm *g, int64_t p) {
    return train__min(g->part, g->terms - g->k0 - p * g->part);
}

/* Part p of the shared side, from element `at` of the pass on. */
INLINE float *shared_at(const gemm *g, int64_t p, int64_t at) {
    int64_t units = units_of(g->count, g->shared_unit) * p;
    return g->device->shared + units * unit_elements(!g->columns, g->part) +
           at / g->shared_unit * unit_elements(!g->columns, part_terms(g, p));
}

static void pack_rows(const gemm *g, float *to, int64_t k0, int64_t k, int64_t first, int64_t rows) {
    const float *a = (const float *)g->x->a + k0 * g->a_col + first * g->a_row;
    int64_t i = 0;
    if (g->a_row == 1) {
        pack_groups(to, a, rows / GM, k, g->a_col);
        i = rows / GM * GM;
    }
    for (; i < rows; i += GM)
        pack_group(to + i / GM * group_elements(k), a + i * g->a_row, train__min(GM, rows - i), k, g->a_row, g->a_col);
}

/* Whole panels of a B whose rows are contiguous: all panels of a k at a time, so that rows are read in their order. */
static void pack_row_panels(float *to, const float *b, int64_t k, int64_t panels, int64_t row) {
    for (int64_t i = 0; i < k; i++, b += row)
        for (int64_t p = 0; p < panels; p++) {
            UNROLL
            for (int v = 0; v < GN; v += LANES) store(to + (p * k + i) * GN + v, load(b + p * GN + v));
        }
}

/* The same of a B in bf16: each row is widened in its order. */
static void pack_narrow_panels(float *to, const uint16_t *b, int64_t k, int64_t panels, int64_t row) {
    for (int64_t i = 0; i < k; i++, b += row)
        for (int64_t p = 0; p < panels; p++) {
            UNROLL
            for (int v = 0; v < GN; v += LANES) store(to + (p * k + i) * GN + v, widen(b + p * GN + v));
        }
}

static void pack_panels_of_bf16(const gemm *g, float *to, int64_t k0, int64_t k, int64_t first, int64_t columns) {
    const uint16_t *b = (const uint16_t *)g->x->b + k0 * g->b_row + first * g->b_col;
    int64_t j = 0;
    if (g->b_col == 1) {
        pack_narrow_panels(to, b, k, columns / GN, g->b_row);
        j = columns / GN * GN;
    }
    for (; j < columns; j += GN)
        pack_narrow(to + j * k, b + j * g->b_col, k, train__min(GN, columns - j), GN, g->b_row, g->b_col);
}

static void pack_panels(const gemm *g, float *to, int64_t k0, int64_t k, int64_t first, int64_t columns) {
    if (g->x->b_type == RAVEL_BF16) {
        pack_panels_of_bf16(g, to, k0, k, first, columns);
        return;
    }
    const float *b = (const float *)g->x->b + k0 * g->b_row + first * g->b_col;
    int64_t j = 0;
    if (g->b_col == 1) {
        pack_row_panels(to, b, k, columns / GN, g->b_row);
        j = columns / GN * GN;
    }
    for (; j < columns; j += GN)
        pack_columns(to + j * k, b + j * g->b_col, k, train__min(GN, columns - j), GN, g->b_row, g->b_col);
}

/* ---- pairs of bf16 --------------------------------------------------------------------------------------- */

#if CPU_PAIRS
/* Terms t .. t + LANES - 1 of a row of n elements of f32, rounded to bf16, 0 behind its end. */
INLINE vf pairs_of(const float *row, int64_t t, int64_t n) {
    float some[2 * LANES] = {0};
    const float *from = row + 2 * t;
    if (n - 2 * t < 2 * LANES) {
        if (n > 2 * t) memcpy(some, from, (size_t)(n - 2 * t) * sizeof *some);
        from = some;
    }
    return (vf)_mm512_cvtne2ps_pbh((__m512)load(from + LANES), (__m512)load(from));
}

/* The same of a row in bf16: they lie there. */
INLINE vf pairs_at(const uint16_t *row, int64_t t, int64_t n) {
    uint16_t some[2 * LANES] = {0};
    const uint16_t *from = row + 2 * t;
    vf pairs;
    if (n - 2 * t < 2 * LANES) {
        if (n > 2 * t) memcpy(some, from, (size_t)(n - 2 * t) * sizeof *some);
        from = some;
    }
    memcpy(&pairs, from, sizeof pairs);
    return pairs;
}

/* Groups [term][GM] of rows whose elements follow one another. */
static void pack_rows_of_pairs(const gemm *g, float *to, int64_t t0, int64_t terms, int64_t first, int64_t rows) {
    for (int64_t i = 0; i < rows; i += GM, to += group_elements(terms))
        for (int64_t t = 0; t < terms; t += LANES) {
            vf in[LANES];
            UNROLL
            for (int r = 0; r < LANES; r++) {
                const float *row = (const float *)g->x->a + (first + i + r) * g->a_row;
                in[r] = r < GM && i + r < rows ? pairs_of(row, t0 + t, g->x->k) : (vf){0};
            }
            turn(in);
            for (int64_t k = 0; k < train__min(LANES, terms - t); k++) store(to + (t + k) * GM, in[k]);
        }
}

/* A panel [term][GN] of columns whose elements follow one another. */
static void pack_turned_pairs(const gemm *g, float *to, int64_t t0, int64_t terms, int64_t first, int64_t columns) {
    for (int64_t j = 0; j < GN; j += LANES)
        for (int64_t t = 0; t < terms; t += LANES) {
            vf in[LANES];
            for (int c = 0; c < LANES; c++) {
                const uint16_t *column = (const uint16_t *)g->x->b + (first + j + c) * g->b_col;
                in[c] = j + c < columns ? pairs_at(column, t0 + t, g->x->k) : (vf){0};
            }
            turn(in);
            for (int64_t k = 0; k < train__min(LANES, terms - t); k++) store(to + (t + k) * GN + j, in[k]);
        }
}

/* The same of a B whose rows follow one another: of two rows, one is the low half of every pair. */
static void pack_paired_rows(const gemm *g, float *to, int64_t t0, int64_t terms, int64_t first, int64_t columns) {
    for (int64_t t = 0; t < terms; t++) {
        const uint16_t *low = (const uint16_t *)g->x->b + 2 * (t0 + t) * g->b_row + first, *high = low + g->b_row;
        int both = 2 * (t0 + t) + 1 < g->x->k;
        for (int64_t j = 0; j < GN; j += LANES) {
            vi l = j < columns ? (vi)widen_at(low, j, columns) : (vi){0};
            vi h = both && j < columns ? (vi)widen_at(high, j, columns) : (vi){0};
            store(to + t * GN + j, (vf)((vi)_mm512_srli_epi32((__m512i)l, 16) | h));
        }
    }
}

static void pack_panels_of_pairs(const gemm *g, float *to, int64_t t0, int64_t terms, int64_t first, int64_t columns) {
    for (int64_t j = 0; j < columns; j += GN)
        (g->b_col == 1 ? pack_paired_rows : pack_turned_pairs)(g, to + j * terms, t0, terms, first + j,
                                                               train__min(GN, columns - j));
}
#else
#define pack_panels_of_pairs pack_panels
#define pack_rows_of_pairs   pack_rows
#endif

/* Rows of A or columns of B, the terms of part p. */
static void pack_side(const gemm *g, int columns, float *to, int64_t p, int64_t first, int64_t count) {
    if (g->pairs) {
        (columns ? pack_panels_of_pairs : pack_rows_of_pairs)(g, to, g->k0 + p * g->part, part_terms(g, p), first,
                                                              count);
        return;
    }
    (columns ? pack_panels : pack_rows)(g, to, g->k0 + p * g->part, part_terms(g, p), first, count);
}

static void pack_task(const void *user, int64_t task, int32_t thread) {
    const gemm *g = user;
    int64_t each = g->packed, tasks = units_of(g->count, each);
    int64_t p = task / tasks, at = task % tasks * each;
    (void)thread;
    pack_side(g, !g->columns, shared_at(g, p, at), p, g->first + at, train__min(each, g->count - at));
}

/* C comes from a farther cache than A and B: it is asked for before the first step, and is there after the last. */
static __attribute__((noinline)) void tile_packed(int64_t k, const float *a, const float *b, float *c, int64_t ldc,
                                                  int add) {
    for (int i = 0; i < GM; i++) {
        UNROLL
        for (int j = 0; j < CPU_GEMM_VECTORS; j++) __builtin_prefetch(c + i * ldc + j * LANES, 1);
    }
    tile(GM, CPU_GEMM_VECTORS, k, a, 1, GM, b, GN, c, ldc, add);
}

#if CPU_PAIRS
static __attribute__((noinline)) void tile_of_pairs(int64_t k, const float *a, const float *b, float *c, int64_t ldc,
                                                    int add) {
    for (int i = 0; i < GM; i++) {
        UNROLL
        for (int j = 0; j < CPU_GEMM_VECTORS; j++) __builtin_prefetch(c + i * ldc + j * LANES, 1);
    }
    tile_pairs(k, a, b, c, ldc, add);
}
#else
#define tile_of_pairs tile_packed /* there are no pairs */
#endif

/* A tile at the edge of C, by way of a whole one. */
static void tile_edge(const gemm *g, const gemm_block *x, const float *a, const float *b, float *c, int64_t ldc,
                      int64_t rows, int64_t width) {
    float edge[GM * GN] = {0};
    RAVEL_ASSERT(rows <= GM && width <= GN);
    for (int64_t r = 0; r < rows && x->add; r++) memcpy(edge + r * GN, c + r * ldc, (size_t)width * sizeof *c);
    (g->pairs ? tile_of_pairs : tile_packed)(x->k, a, b, edge, GN, x->add);
    for (int64_t r = 0; r < rows; r++) memcpy(c + r * ldc, edge + r * GN, (size_t)width * sizeof *c);
}

static void multiply(const gemm *g, const gemm_block *x) {
    const float *a = x->a;
    for (int64_t i = 0; i < x->rows; i += GM, a += group_elements(x->k)) {
        float *c = (float *)g->x->c + (x->row + i) * g->ldc + x->column;
        int64_t rows = train__min(GM, x->rows - i);
        for (int64_t j = 0; j < x->columns; j += GN) {
            int64_t width = train__min(GN, x->columns - j);
            if (rows == GM && width == GN)
                (g->pairs ? tile_of_pairs : tile_packed)(x->k, a, x->b + j * x->k, c + j, g->ldc, x->add);
            else
                tile_edge(g, x, a, x->b + j * x->k, c + j, g->ldc, rows, width);
        }
    }
}

/* One part of k: the owned elements first .. first+count-1, with elements v0 .. v1-1 of the shared side. */
static void block_part(const gemm *g, float *own, int64_t p, int64_t first, int64_t count, int64_t v0, int64_t v1) {
    gemm_block x = {.k = part_terms(g, p), .add = g->x->add || g->k0 + p > 0};
    int64_t step = g->columns ? v1 - v0 : CHUNK;
    pack_side(g, g->columns, own, p, first, count);
    for (int64_t v = v0; v < v1; v += step) {
        int64_t at = g->first + v, many = train__min(step, v1 - v);
        x.a = g->columns ? shared_at(g, p, v) : own;
        x.b = g->columns ? own : shared_at(g, p, v);
        x.row = g->columns ? at : first;
        x.rows = g->columns ? many : count;
        x.column = g->columns ? first : at;
        x.columns = g->columns ? count : many;
        multiply(g, &x);
    }
}

static void block_task(const void *user, int64_t task, int32_t thread) {
    const gemm *g = user;
    int64_t block = task / g->splits, v0 = task % g->splits * g->span, v1 = train__min(g->count, v0 + g->span);
    int64_t late = train__max(block - g->large, 0), most = g->columns ? CHUNK / GN : MC;
    int64_t unit = train__min(block, g->large) * g->large_units + late * g->small_units;
    int64_t many = block < g->large ? g->large_units : g->small_units;
    int64_t end = train__min(units_of(g->own, g->own_unit), unit + many);
    for (; unit < end; unit += most) {
        int64_t first = unit * g->own_unit, last = train__min(g->own, train__min(end, unit + most) * g->own_unit);
        for (int64_t p = 0; p < g->parts; p++)
            block_part(g, train__cpu_private(g->device, thread), p, first, last - first, v0, v1);
    }
}

/* Sizes of blocks for several threads: one large block each, half to a third of all together, then small ones. Of such
 * sizes those with which threads of one speed end soonest; small blocks also serve threads that are slower. */
static void cut_units(gemm *g, int64_t units, int64_t least) {
    int64_t most = train__max(units / 2 / g->large, 1), soonest = INT64_MAX;
    for (int64_t large = most; large >= train__max(most * 2 / 3, 1); large--)
        for (int64_t small = train__max(large / 3, least); small >= least; small--) {
            int64_t left = train__max(units - g->large * large, 0);
            int64_t end = large + units_of(units_of(left, small), g->large) * small;
            if (end >= soonest) continue;
            soonest = end;
            g->large_units = large;
            g->small_units = small;
        }
}

/* One thread has one block. Where the owned side is too short for several threads, the shared one is cut too. Returns
 * the number of tasks. */
static int64_t cut_blocks(gemm *g) {
    int64_t threads = g->device->threads, units = units_of(g->own, g->own_unit);
    int64_t least = train__max(LEAST / g->own_unit, 1), wanted = units_of(3 * threads, train__max(units / least, 1));
    int64_t splits = threads > 1 ? train__max(train__min(wanted, g->count / SHORTEST), 1) : 1;
    g->span = units_of(units_of(g->count, g->shared_unit), splits) * g->shared_unit;
    g->splits = units_of(g->count, g->span);
    g->large = train__max(threads / g->splits, 1);
    g->large_units = units;
    g->small_units = g->splits > 1 ? least : train__max(SMALL / g->own_unit, 1);
    if (threads > 1) cut_units(g, units, g->small_units);
    int64_t left = train__max(units - g->large * g->large_units, 0);
    return (g->large + units_of(left, g->small_units)) * g->splits;
}

/* k in parts of at most KC, equal but for whole cache lines: packing then reads and writes whole vectors. */
static int64_t part_of(int64_t k) {
    int64_t parts = units_of(k, KC);
    return train__min(k, train__round_up(units_of(k, parts), 16));
}

/* Rows or columns that a task packs for all: several groups or panels, so that lines are read once and in order, where
 * every thread has a few tasks. */
static int64_t pack_at_once(const gemm *g) {
    int64_t units = units_of(g->count, g->shared_unit) * g->parts / (3 * g->device->threads);
    return train__max(1, train__min(4, units)) * g->shared_unit;
}

/* All of the owned side, for one stretch of the shared side and all k. */
static void run_stretch(gemm *g) {
    int64_t parts = units_of(g->terms, g->part), tasks = cut_blocks(g);
    int64_t each = units_of(g->count, g->shared_unit) * unit_elements(!g->columns, g->part);
    int64_t room = train__cpu_shared_elements(g->device) / each;
    RAVEL_ASSERT(room > 0);
    if (g->device->threads == 1) room = 1; /* nobody is waited for, and one part stays in a nearer cache */
    for (int64_t p = 0; p < parts; p += g->parts) {
        g->k0 = p * g->part;
        g->parts = train__min(room, parts - p);
        g->packed = pack_at_once(g);
        train__cpu_run(g->device, units_of(g->count, g->packed) * g->parts, pack_task, g);
        train__cpu_run(g->device, tasks, block_task, g);
    }
}

static void gemm_run(train_device *device, const train_matmul *x) {
    int pairs = device->pairs && x->b_type == RAVEL_BF16 && !x->trans_a;
    int64_t terms = pairs ? (x->k + 1) / 2 : x->k;
    gemm g = {.device = device, .x = x, .columns = x->n >= 2 * x->m, .pairs = pairs, .terms = terms};
    g.part = part_of(terms);
    int64_t shared = g.columns ? x->m : x->n;
    g.own = g.columns ? x->n : x->m;
    g.own_unit = g.columns ? GN : GM;
    g.shared_unit = g.columns ? GM : GN;
    g.ldc = x->ldc;
    g.a_row = x->trans_a ? 1 : x->lda;
    g.a_col = x->trans_a ? x->lda : 1;
    g.b_row = x->trans_b ? 1 : x->ldb;
    g.b_col = x->trans_b ? x->ldb : 1;
    for (g.first = 0; g.first < shared; g.first += NC) {
        g.count = train__min(NC, shared - g.first);
        run_stretch(&g);
    }
}

/* Elements that a product whose sides are at most `most` packs: of the shared side, and of its own by each thread. */
static int64_t packed_elements(int64_t most) {
    int64_t k = train__min(KC, most), count = train__min(NC, most);
    return train__max(units_of(count, GN) * unit_elements(1, k), units_of(count, GM) * unit_elements(0, k));
}

static int64_t owned_elements(int64_t most) {
    int64_t k = train__min(KC, most), groups = train__min(MC, units_of(most, GM));
    return train__max(groups * unit_elements(0, k), train__min(CHUNK, train__round_up(most, GN)) * k);
}
