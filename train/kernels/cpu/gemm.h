/* Matrix products. Body: included once per instruction set (see simd.h).
 *
 * One small product does all the work, for attention too: `tile` keeps MR rows x NV vectors of C in registers and
 * walks k, a broadcast of A times a row of B at each step:
 *
 *            B [k][64]  (four vectors of 16)                    MR = 6, NV = 4: 24 vectors of C, 4 of B, 1 of A
 *     A      ----------------
 *     6 rows C  C  C  C          each element of C is one chain a0 b0 + a1 b1 + ... in the order of k, whatever
 *            C  C  C  C          the sizes of the product and wherever the element lies
 *
 * A large product is cut so that repeated reads hit the cache: a panel of B (KC x 64, packed, in the
 * second-level cache) meets MC rows of A, panel after panel. Row blocks are the tasks of the threads; they are the same
 * for any number of threads. */

enum { KC = 512, MC = 32 * MR, NC = 64 * NR };

INLINE void tile(int mr, int nv, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b, int64_t ldb,
                 float *c, int64_t ldc, int add) {
    vf sum[MR][NV];
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

/* b[k][j] = source[k * row + j * col] for `width` <= NR columns, 0 behind them. */
static void pack_panel(float *b, const float *source, int64_t k, int64_t width, int64_t row, int64_t col) {
    if (col == 1) {
        for (int64_t i = 0; i < k; i++, b += NR, source += row) {
            memcpy(b, source, (size_t)width * sizeof *b);
            if (width < NR) memset(b + width, 0, (size_t)(NR - width) * sizeof *b);
        }
        return;
    }
    if (width < NR) memset(b, 0, (size_t)(k * NR) * sizeof *b);
    for (int64_t j = 0; j < width; j += LANES)
        transpose(b + j, NR, source + j * col, col, k, train__min(LANES, width - j));
}

/* a[p][k][MR]: rows in groups of MR, for an A that is stored with k as its rows. */
static void pack_rows(float *a, const float *source, int64_t m, int64_t k, int64_t col) {
    int64_t whole = m / MR, rest = m % MR;
    for (int64_t i = 0; i < k; i++, a += MR, source += col) {
        for (int64_t p = 0; p < whole; p++) memcpy(a + p * MR * k, source + p * MR, MR * sizeof *a);
        for (int64_t r = 0; r < rest; r++) a[whole * MR * k + r] = source[whole * MR + r];
    }
}

/* ---- large products ------------------------------------------------------------------------------------- */

typedef struct gemm {
    train_device *device;
    const train_matmul *x;
    int64_t a_row, a_col, b_row, b_col, ldc;
    int64_t n0, n, k0, k; /* the part of N and K that is being worked on */
    int add;
} gemm;

static void pack_task(void *user, int64_t panel, int32_t thread) {
    const gemm *g = user;
    int64_t j = panel * NR;
    (void)thread;
    pack_panel(g->device->shared + panel * NR * g->k,
               (const float *)g->x->b + g->k0 * g->b_row + (g->n0 + j) * g->b_col, g->k, train__min(NR, g->n - j),
               g->b_row, g->b_col);
}

/* C rows m0 .. of one panel. The last columns, where they are no whole vector, go by way of `edge`. */
static void panel_rows(const gemm *g, int64_t m, const float *a, int64_t a_group, int64_t a_row, int64_t a_col,
                       const float *b, float *c, int64_t width) {
    int vectors = (int)((width + LANES - 1) / LANES);
    if (width % LANES == 0) {
        for (int64_t i = 0; i < m; i += MR, a += a_group)
            tile_rows(train__min(MR, m - i), vectors, g->k, a, a_row, a_col, b, NR, c + i * g->ldc, g->ldc, g->add);
        return;
    }
    float edge[MR * NR];
    for (int64_t i = 0; i < m; i += MR, a += a_group) {
        int64_t rows = train__min(MR, m - i);
        for (int64_t r = 0; r < rows && g->add; r++)
            memcpy(edge + r * NR, c + (i + r) * g->ldc, (size_t)width * sizeof *c);
        tile_rows(rows, vectors, g->k, a, a_row, a_col, b, NR, edge, NR, g->add);
        for (int64_t r = 0; r < rows; r++) memcpy(c + (i + r) * g->ldc, edge + r * NR, (size_t)width * sizeof *c);
    }
}

static void rows_task(void *user, int64_t block, int32_t thread) {
    const gemm *g = user;
    int64_t m0 = block * MC, m = train__min(MC, g->x->m - m0);
    const float *a = (const float *)g->x->a + m0 * g->a_row + g->k0 * g->a_col;
    int64_t group = MR * g->a_row, a_row = g->a_row, a_col = g->a_col;
    if (g->a_col != 1) {
        float *packed = train__cpu_private(g->device, thread);
        pack_rows(packed, a, m, g->k, g->a_col);
        a = packed;
        group = MR * g->k;
        a_row = 1;
        a_col = MR;
    }
    for (int64_t j = 0; j < g->n; j += NR)
        panel_rows(g, m, a, group, a_row, a_col, g->device->shared + j * g->k,
                   (float *)g->x->c + m0 * g->ldc + g->n0 + j, train__min(NR, g->n - j));
}

/* k in equal parts of at most KC. */
static int64_t part_of(int64_t k) {
    int64_t parts = (k + KC - 1) / KC;
    return (k + parts - 1) / parts;
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
            train__cpu_run(device, (g.n + NR - 1) / NR, pack_task, &g);
            train__cpu_run(device, (x->m + MC - 1) / MC, rows_task, &g);
        }
}
