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
 * A large product packs both sides, a part of k (KC) at a time, and cuts C into tasks of rows x columns:
 *
 *     A packed  [group][k][GM]   rows in groups of GM          job 1: tasks are panels of B and groups of A
 *     B packed  [panel][k][GN]   columns in panels of GN       job 2: tasks are blocks of C; a group of A meets panel
 *                                                                     after panel of B
 *
 * GM x GN is the tile of job 2: as tall as registers allow, because the group of A stays in the first-level cache and
 * each panel of B comes from the second. The cut into tasks depends on the number of threads; results do not, because
 * each element is one chain per part of k. */

enum { GM = CPU_GEMM_ROWS, GN = CPU_GEMM_VECTORS * CPU_LANES }; /* the tile of large products */
enum { KC = 640, NC = 4096, MC = 2048 };                        /* what is packed at a time */

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
    int64_t m0, m, n0, n, k0, k; /* the part of M, N and K that is being worked on */
    int64_t panels;              /* of B to pack; 0: they are packed */
    int64_t rows, columns;       /* of a task: multiples of GM and GN */
    int add;
} gemm;

enum { PACK_GROUPS = 8 }; /* groups of A in a task of packing */

/* A is packed behind B. */
INLINE float *packed_a(const gemm *g) {
    return g->device->shared + train__round_up(g->n, GN) * g->k;
}

static void pack_panel_of(const gemm *g, int64_t panel) {
    int64_t j = panel * GN;
    const float *b = (const float *)g->x->b + g->k0 * g->b_row + (g->n0 + j) * g->b_col;
    pack_columns(g->device->shared + j * g->k, b, g->k, train__min(GN, g->n - j), GN, g->b_row, g->b_col);
}

static void pack_task(void *user, int64_t task, int32_t thread) {
    const gemm *g = user;
    const float *a = (const float *)g->x->a + g->k0 * g->a_col;
    (void)thread;
    if (task < g->panels) {
        pack_panel_of(g, task);
        return;
    }
    int64_t i = (task - g->panels) * PACK_GROUPS * GM, end = train__min(g->m, i + PACK_GROUPS * GM);
    if (g->a_row == 1) {
        int64_t whole = (end - i) / GM;
        pack_groups(packed_a(g) + i / GM * group_elements(g->k), a + g->m0 + i, whole, g->k, g->a_col);
        i += whole * GM;
    }
    for (; i < end; i += GM)
        pack_group(packed_a(g) + i / GM * group_elements(g->k), a + (g->m0 + i) * g->a_row, train__min(GM, g->m - i),
                   g->k, g->a_row, g->a_col);
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

static void block_task(void *user, int64_t task, int32_t thread) {
    const gemm *g = user;
    int64_t across = (g->n + g->columns - 1) / g->columns;
    int64_t i0 = task / across * g->rows, j0 = task % across * g->columns;
    int64_t i1 = train__min(g->m, i0 + g->rows), j1 = train__min(g->n, j0 + g->columns);
    (void)thread;
    for (int64_t i = i0; i < i1; i += GM) {
        const float *a = packed_a(g) + i / GM * group_elements(g->k);
        float *c = (float *)g->x->c + (g->m0 + i) * g->ldc + g->n0;
        for (int64_t j = j0; j < j1; j += GN) {
            const float *b = g->device->shared + j * g->k;
            if (i1 - i >= GM && j1 - j >= GN)
                tile_packed(g->k, a, b, c + j, g->ldc, g->add);
            else
                tile_edge(g, a, b, c + j, train__min(GM, i1 - i), train__min(GN, j1 - j));
        }
    }
}

static int64_t blocks_of(const gemm *g) {
    return ((g->m + g->rows - 1) / g->rows) * ((g->n + g->columns - 1) / g->columns);
}

/* Blocks that the second-level cache likes, and smaller ones where each thread would have too few. */
static void choose_blocks(gemm *g) {
    int64_t enough = g->device->threads > 1 ? 6 * g->device->threads : 1;
    g->rows = 96 / GM * GM;
    g->columns = 256;
    while (blocks_of(g) < enough && g->columns > 2 * GN) g->columns /= 2;
    while (blocks_of(g) < enough && g->rows > 2 * GM) g->rows = train__round_up(g->rows / 2, GM);
}

/* k in equal parts of at most KC. */
static int64_t part_of(int64_t k) {
    int64_t parts = (k + KC - 1) / KC;
    return (k + parts - 1) / parts;
}

/* All rows of C, for one part of N and K. */
static void run_part(gemm *g) {
    g->panels = (g->n + GN - 1) / GN;
    for (g->m0 = 0; g->m0 < g->x->m; g->m0 += MC, g->panels = 0) {
        g->m = train__min(MC, g->x->m - g->m0);
        choose_blocks(g);
        train__cpu_run(g->device, g->panels + (g->m + PACK_GROUPS * GM - 1) / (PACK_GROUPS * GM), pack_task, g);
        train__cpu_run(g->device, blocks_of(g), block_task, g);
    }
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

/* Elements that a product whose sides are at most `most` packs. */
static int64_t packed_elements(int64_t most) {
    int64_t k = train__min(KC, most), groups = (train__min(MC, most) + GM - 1) / GM;
    return k * train__round_up(train__min(NC, most), GN) + groups * group_elements(k);
}
