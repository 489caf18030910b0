/* Matrix products. Body: included once per instruction set (see simd.h).
 *
 * One small product does all the work, for attention too: `tile` keeps some rows x vectors of C in registers and walks k,
 * a broadcast of A times a row of B at each step:
 *
 *            B [k][64]  (four vectors of 16)                    MR = 6, NV = 4: 24 vectors of C, 4 of B, 1 of A
 *     A      ----------------
 *     6 rows C  C  C  C          each element of C is one chain a0 b0 + a1 b1 + ... in the order of k, whatever
 *            C  C  C  C          the sizes of the product and wherever the element lies
 *
 * A large product packs both sides, a part of k (KC) at a time:
 *
 *     B packed  [panel][k][GN]   columns in panels of GN, for all threads    job 1: tasks are panels
 *     A packed  [group][k][GM]   rows in groups of GM, a thread's own        job 2: tasks are blocks of rows: pack A, then
 *                                                                            for each chunk of B, each group of A, each
 *                                                                            panel of the chunk: a tile of C
 *
 * A tile is GM x GN, as tall as registers allow. A chunk of B stays in the second-level cache for all groups of a block, and
 * A is where it was packed: threads read little of one another's. Blocks are large, and the last ones small, so that
 * threads end together. The cut depends on the number of threads; results do not, because each element is one chain per
 * part of k. */

enum { GM = CPU_GEMM_ROWS, GN = CPU_GEMM_VECTORS * CPU_LANES }; /* the tile of large products */
enum { KC = 640, NC = 4096, MC = 2048 };                        /* packed at a time, by all threads together */
enum { CHUNK = 256 / GN * GN };                                 /* columns of B */

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
#define TILE_ROW(nv) \
    { tile_1_##nv, tile_2_##nv, tile_3_##nv, tile_4_##nv, tile_5_##nv, tile_6_##nv }
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

/* Squares of GM x LANES of rows of A, turned: to[k * GM + r] = from[r * row + k]. Stores whole vectors one over the other,
 * so LANES - GM elements behind the last are written too. */
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
    int64_t i = 0;
#if CPU_LANES >= CPU_GEMM_ROWS
    if (col == 1 && rows == GM)
        for (; i + LANES <= k; i += LANES) turn_rows(a + i * GM, source + i, row);
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
        for (int64_t g = 0; g < groups; g++)
            memcpy(a + g * group_elements(k) + i * GM, source + i * col + g * GM, GM * sizeof *a);
}

/* ---- large products ------------------------------------------------------------------------------------- */

typedef struct gemm {
    train_device *device;
    const train_matmul *x;
    int64_t a_row, a_col, b_row, b_col, ldc;
    int64_t n0, n, k0, k;                      /* the part of N and K that is being worked on */
    int64_t groups;                            /* of A */
    int64_t splits, columns;                   /* tasks of a block of rows; columns of a task */
    int64_t large, large_groups, small_groups; /* blocks of rows: this number of large ones, then small ones */
    int add;
} gemm;

static void pack_task(void *user, int64_t panel, int32_t thread) {
    const gemm *g = user;
    int64_t j = panel * GN;
    const float *b = (const float *)g->x->b + g->k0 * g->b_row + (g->n0 + j) * g->b_col;
    (void)thread;
    pack_columns(g->device->shared + j * g->k, b, g->k, train__min(GN, g->n - j), GN, g->b_row, g->b_col);
}

static void pack_rows(const gemm *g, float *to, int64_t first, int64_t rows) {
    const float *a = (const float *)g->x->a + g->k0 * g->a_col + first * g->a_row;
    int64_t i = 0;
    if (g->a_row == 1) {
        pack_groups(to, a, rows / GM, g->k, g->a_col);
        i = rows / GM * GM;
    }
    for (; i < rows; i += GM)
        pack_group(to + i / GM * group_elements(g->k), a + i * g->a_row, train__min(GM, rows - i), g->k, g->a_row,
                   g->a_col);
}

static __attribute__((noinline)) void tile_packed(int64_t k, const float *a, const float *b, float *c, int64_t ldc,
                                                  int add) {
    tile(GM, CPU_GEMM_VECTORS, k, a, 1, GM, b, GN, c, ldc, add);
}

/* A tile at the edge of C, by way of a whole one. */
static void tile_edge(const gemm *g, const float *a, const float *b, float *c, int64_t rows, int64_t width) {
    float edge[GM * GN] = {0};
    for (int64_t r = 0; r < rows && g->add; r++) memcpy(edge + r * GN, c + r * g->ldc, (size_t)width * sizeof *c);
    tile_packed(g->k, a, b, edge, GN, g->add);
    for (int64_t r = 0; r < rows; r++) memcpy(c + r * g->ldc, edge + r * GN, (size_t)width * sizeof *c);
}

/* Rows first .. first+rows-1 of C, whose A is packed, in columns j0 .. j1-1. */
static void multiply(const gemm *g, const float *a, int64_t first, int64_t rows, int64_t j0, int64_t j1) {
    for (int64_t i = 0; i < rows; i += GM, a += group_elements(g->k)) {
        float *c = (float *)g->x->c + (first + i) * g->ldc + g->n0;
        for (int64_t j = j0; j < j1; j += GN) {
            const float *b = g->device->shared + j * g->k;
            if (rows - i >= GM && j1 - j >= GN)
                tile_packed(g->k, a, b, c + j, g->ldc, g->add);
            else
                tile_edge(g, a, b, c + j, train__min(GM, rows - i), train__min(GN, j1 - j));
        }
    }
}

/* Groups that a thread packs at a time. */
static int64_t most_groups(int32_t threads) {
    return train__max((MC / threads + GM - 1) / GM, 16);
}

static void block_task(void *user, int64_t task, int32_t thread) {
    const gemm *g = user;
    float *a = train__cpu_private(g->device, thread);
    int64_t block = task / g->splits, j0 = task % g->splits * g->columns, j1 = train__min(g->n, j0 + g->columns);
    int64_t late = train__max(block - g->large, 0), most = most_groups(g->device->threads);
    int64_t group = train__min(block, g->large) * g->large_groups + late * g->small_groups;
    int64_t end = train__min(g->groups, group + (block < g->large ? g->large_groups : g->small_groups));
    for (; group < end; group += most) {
        int64_t first = group * GM, rows = train__min(g->x->m, train__min(end, group + most) * GM) - first;
        pack_rows(g, a, first, rows);
        for (int64_t j = j0; j < j1; j += CHUNK) multiply(g, a, first, rows, j, train__min(j1, j + CHUNK));
    }
}

/* One thread has one block. Several have a large one each, three quarters of all rows together, then small ones. Where
 * there are few rows, columns are cut too. */
static int64_t cut_blocks(gemm *g) {
    int64_t threads = g->device->threads, panels = (g->n + GN - 1) / GN;
    g->groups = (g->x->m + GM - 1) / GM;
    g->splits = threads > 1 ? train__max(train__min((4 * threads + g->groups - 1) / g->groups, panels / 4), 1) : 1;
    g->columns = (panels + g->splits - 1) / g->splits * GN;
    g->splits = (g->n + g->columns - 1) / g->columns;
    g->large = train__max(threads / g->splits, 1);
    g->large_groups = threads > 1 ? train__max(g->groups * 3 / 4 / g->large, 1) : g->groups;
    g->small_groups = train__max(g->large_groups / 6, 1);
    int64_t left = train__max(g->groups - g->large * g->large_groups, 0);
    return (g->large + (left + g->small_groups - 1) / g->small_groups) * g->splits;
}

/* k in equal parts of at most KC. */
static int64_t part_of(int64_t k) {
    int64_t parts = (k + KC - 1) / KC;
    return (k + parts - 1) / parts;
}

/* All rows of C, for one part of N and K. */
static void run_part(gemm *g) {
    train__cpu_run(g->device, (g->n + GN - 1) / GN, pack_task, g);
    train__cpu_run(g->device, cut_blocks(g), block_task, g);
}

static void gemm_run(train_device *device, const train_matmul *x) {
    gemm g = {.device = device, .x = x};
    int64_t lda = x->lda ? x->lda : x->trans_a ? x->m : x->k, ldb = x->ldb ? x->ldb : x->trans_b ? x->k : x->n;
    g.ldc = x->ldc ? x->ldc : x->n;
    g.a_row = x->trans_a ? 1 : lda;
    g.a_col = x->trans_a ? lda : 1;
    g.b_row = x->trans_b ? 1 : ldb;
    g.b_col = x->trans_b ? ldb : 1;
    int64_t part = part_of(x->k);
    for (g.n0 = 0; g.n0 < x->n; g.n0 += NC)
        for (g.k0 = 0; g.k0 < x->k; g.k0 += part) {
            g.n = train__min(NC, x->n - g.n0);
            g.k = train__min(part, x->k - g.k0);
            g.add = x->add || g.k0 > 0;
            run_part(&g);
        }
}

/* Elements that a product whose sides are at most `most` packs: of B, and of A by each thread. */
static int64_t packed_elements(int64_t most) {
    return train__min(KC, most) * train__round_up(train__min(NC, most), GN);
}

static int64_t packed_rows_elements(int64_t most, int32_t threads) {
    return train__min(most_groups(threads), (most + GM - 1) / GM) * group_elements(train__min(KC, most));
}
