/* Matrix products by cuBLASLt, with the algorithm chosen by timing.
 *
 * cuBLASLt's first guess is 3 to 14 % behind its best one on some of a transformer's shapes. So the first product of a
 * shape times up to eight candidates on the real inputs, into a throw-away output, and keeps the fastest. Shapes that
 * differ only in the number of tokens by less than a quarter share a choice: an algorithm works for any size.
 *
 * An invariant product has one algorithm for every m, so its choice must not depend on the m that comes first. It is
 * timed with a typical number of rows, on inputs of zeros: FEW_ROWS for the steps of a generator, which need small
 * tiles to fill the GPU, MANY_ROWS for prompts.
 *
 * Choices are kept on disk (kept.h), one line per shape, in a file per library version and GPU:
 *
 *     cublaslt-VERSION-GPU.txt:    m n k flags algorithm-in-hex
 *
 * A line that cuBLASLt does not accept for its shape is ignored and timed again. Runs that must repeat their bits on
 * another machine share that file, since another algorithm may add in another order.
 *
 * Row-major c = a b is column-major c' = b' a', so the operands change places and nothing is transposed in memory. */
#include "train/kernels/cuda/device.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/kernels/cuda/kept.h"

enum { SHAPES = 1024, CANDIDATES = 8, FEW_CANDIDATES = 32, TIMED = 3, FEW_TIMED = 20 };
enum { FEW_ROWS = 256, MANY_ROWS = 4096 };
#define WORKSPACE_BYTES ((size_t)64 << 20)

enum flags { TRANS_A = 1, TRANS_B = 2, F32 = 4, ADD = 8, BATCH_INVARIANT = 16, FEW = 32 };

typedef struct shape_key {
    int64_t m, n, k;
    int32_t flags, reserved;
} shape_key;

/* The operation and its operands as cuBLASLt descriptors. */
typedef struct call {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t left, right, out;
} call;

typedef struct choice {
    shape_key key; /* m = 0: free */
    cublasLtMatmulAlgo_t algorithm;
    int32_t checked; /* not only read from disk */
    call made;       /* for the sizes of `last`: the layers of a micro-batch ask for the same ones */
    train_matmul last;
} choice;

struct cuda_products {
    cublasLtHandle_t handle;
    cudaEvent_t begin, end;
    char file[512]; /* "" if there is no place to keep it */
    choice choices[SHAPES];
};

/* Three significant bits: 1, 1.25, 1.5, 1.75 times a power of two, upwards. */
static int64_t bucket(int64_t x) {
    int64_t step = 1;
    while (x > step * 8) step *= 2;
    return (x + step - 1) / step * step;
}

static int few(const train_matmul *p) {
    return p->batch_invariant == TRAIN_INVARIANT_FEW;
}

/* The dimension that counts tokens is m, or k where a is transposed (the gradient of a weight). */
static shape_key key_of(const train_matmul *p) {
    shape_key key = {p->m, p->n, p->k, 0, 0};
    key.flags = (p->trans_a ? TRANS_A : 0) | (p->trans_b ? TRANS_B : 0) | (p->c_type == RAVEL_F32 ? F32 : 0) |
                (p->add ? ADD : 0) | (p->batch_invariant ? BATCH_INVARIANT : 0) | (few(p) ? FEW : 0);
    if (p->batch_invariant)
        key.m = few(p) ? FEW_ROWS : MANY_ROWS;
    else if (p->trans_a)
        key.k = bucket(key.k);
    else
        key.m = bucket(key.m);
    return key;
}

static int same_key(const shape_key *a, const shape_key *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static uint64_t hash_key(const shape_key *key) {
    uint64_t h = (uint64_t)key->m * 0x9e3779b97f4a7c15u ^ (uint64_t)key->n * 0xbf58476d1ce4e5b9u ^
                 (uint64_t)key->k * 0x94d049bb133111ebu ^ (uint64_t)key->flags * 0x2545f4914f6cdd1du;
    return h ^ h >> 29;
}

/* The key's place, or a free one; NULL if the table is full. */
static choice *find(cuda_products *p, const shape_key *key) {
    uint64_t at = hash_key(key);
    for (int i = 0; i < SHAPES; i++) {
        choice *c = &p->choices[(at + (uint64_t)i) % SHAPES];
        if (c->key.m == 0 || same_key(&c->key, key)) return c;
    }
    return NULL;
}

/* ---- calls ----------------------------------------------------------------------------------------------- */

static void call_free(call *c) {
    if (c->out) cublasLtMatrixLayoutDestroy(c->out);
    if (c->right) cublasLtMatrixLayoutDestroy(c->right);
    if (c->left) cublasLtMatrixLayoutDestroy(c->left);
    if (c->operation) cublasLtMatmulDescDestroy(c->operation);
}

static cublasStatus_t call_make(const train_matmul *p, call *c) {
    cublasOperation_t left = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, right = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    int64_t lda = p->lda ? p->lda : (p->trans_a ? p->m : p->k), ldb = p->ldb ? p->ldb : (p->trans_b ? p->k : p->n);
    uint64_t left_rows = (uint64_t)(p->trans_b ? p->k : p->n), left_columns = (uint64_t)(p->trans_b ? p->n : p->k);
    uint64_t right_rows = (uint64_t)(p->trans_a ? p->m : p->k), right_columns = (uint64_t)(p->trans_a ? p->k : p->m);
    memset(c, 0, sizeof *c);
    cublasStatus_t s = cublasLtMatmulDescCreate(&c->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s) s = cublasLtMatmulDescSetAttribute(c->operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left);
    if (!s) s = cublasLtMatmulDescSetAttribute(c->operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right);
    if (!s) s = cublasLtMatrixLayoutCreate(&c->left, CUDA_R_16BF, left_rows, left_columns, ldb);
    if (!s) s = cublasLtMatrixLayoutCreate(&c->right, CUDA_R_16BF, right_rows, right_columns, lda);
    if (!s)
        s = cublasLtMatrixLayoutCreate(&c->out, p->c_type == RAVEL_F32 ? CUDA_R_32F : CUDA_R_16BF, (uint64_t)p->n,
                                       (uint64_t)p->m, p->ldc ? p->ldc : p->n);
    if (s) call_free(c);
    return s;
}

static cublasStatus_t issue(train_device *d, const call *c, const train_matmul *p, void *out,
                            const cublasLtMatmulAlgo_t *algorithm) {
    float alpha = p->scale != 0 ? (float)p->scale : 1, beta = p->add ? 1 : 0;
    RAVEL_ASSERT(d->scratch && d->scratch_bytes >= WORKSPACE_BYTES && c->operation);
    return cublasLtMatmul(d->products->handle, c->operation, &alpha, p->b, c->left, p->a, c->right, &beta, out, c->out,
                          out, c->out, algorithm, d->scratch, WORKSPACE_BYTES, d->stream);
}

/* ---- the choice ------------------------------------------------------------------------------------------ */

/* Milliseconds of several calls after one to warm up; below 0 if the algorithm failed. */
static float time_algorithm(train_device *d, const call *c, const train_matmul *p, void *out,
                            const cublasLtMatmulAlgo_t *algorithm) {
    cuda_products *state = d->products;
    float ms = -1;
    if (issue(d, c, p, out, algorithm)) return -1;
    cudaEventRecord(state->begin, d->stream);
    for (int i = 0; i < (few(p) ? FEW_TIMED : TIMED); i++)
        if (issue(d, c, p, out, algorithm)) return -1;
    cudaEventRecord(state->end, d->stream);
    if (cudaEventSynchronize(state->end) || cudaEventElapsedTime(&ms, state->begin, state->end)) return -1;
    return ms;
}

/* An invariant product must also add in one order for every m: no split of k. */
static int allowed(const train_matmul *p, const cublasLtMatmulAlgo_t *algorithm) {
    int32_t split = 1;
    size_t size;
    if (!p->batch_invariant) return 1;
    cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &size);
    return split <= 1;
}

static cublasStatus_t candidates(train_device *d, const call *c, int most_candidates,
                                 cublasLtMatmulHeuristicResult_t *found, int *count) {
    cublasLtMatmulPreference_t preference;
    size_t most = WORKSPACE_BYTES;
    cublasStatus_t s = cublasLtMatmulPreferenceCreate(&preference);
    if (s) return s;
    s = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(d->products->handle, c->operation, c->left, c->right, c->out, c->out,
                                           preference, most_candidates, found, count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (!s && *count == 0) s = CUBLAS_STATUS_NOT_SUPPORTED;
    return s;
}

/* Bytes of the arrays that a choice is timed on: the output, and an invariant product's input. */
static size_t output_bytes(const train_matmul *p) {
    size_t elements = (size_t)(p->m - 1) * (size_t)(p->ldc ? p->ldc : p->n) + (size_t)p->n;
    return elements * (p->c_type == RAVEL_F32 ? 4 : 2);
}

static size_t input_bytes(const train_matmul *p) {
    return p->batch_invariant ? (size_t)(p->m * (p->lda ? p->lda : p->k)) * 2 : 0;
}

/* The fastest of those candidates that are allowed; the first one without memory to time them in. */
static int fastest(train_device *d, const call *c, const train_matmul *p, const cublasLtMatmulHeuristicResult_t *found,
                   int count) {
    int chosen = -1, first = -1;
    float least = 0;
    char *block = NULL;
    size_t in = (input_bytes(p) + 255) / 256 * 256, out = output_bytes(p);
    int measured = !d->capturing && cudaMallocAsync((void **)&block, in + out, d->stream) == cudaSuccess;
    if (!measured && !d->capturing) cudaGetLastError(); /* not sticky: only this allocation failed */
    train_matmul timed = *p;
    if (measured && in) {
        cuda_ok(d, cudaMemsetAsync(block, 0, in, d->stream), "timing products");
        timed.a = block;
    }
    for (int i = 0; i < count; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || !allowed(p, &found[i].algo)) continue;
        if (first < 0) first = i;
        float ms = measured ? time_algorithm(d, c, &timed, block + in, &found[i].algo) : -1;
        if (ms >= 0 && (chosen < 0 || ms < least)) chosen = i, least = ms;
    }
    if (measured) cudaFreeAsync(block, d->stream);
    return chosen < 0 ? first : chosen;
}

/* Times the candidates into a buffer of their own, because the product may add to what is there. */
static cublasStatus_t choose(train_device *d, const train_matmul *p, cublasLtMatmulAlgo_t *best) {
    cublasLtMatmulHeuristicResult_t found[FEW_CANDIDATES];
    train_matmul sized = *p;
    call c;
    int count = 0;
    if (p->batch_invariant) sized.m = key_of(p).m;
    cublasStatus_t s = call_make(&sized, &c);
    if (s) return s;
    s = candidates(d, &c, few(p) ? FEW_CANDIDATES : CANDIDATES, found, &count);
    int chosen = s ? -1 : fastest(d, &c, &sized, found, count);
    call_free(&c);
    if (chosen >= 0) *best = found[chosen].algo;
    return s ? s : chosen < 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

/* ---- the file -------------------------------------------------------------------------------------------- */

static void remember(cuda_products *p, const choice *c) {
    char line[64 + 4 * 24 + 2 * sizeof c->algorithm];
    int n = snprintf(line, sizeof line, "%lld %lld %lld %d ", (long long)c->key.m, (long long)c->key.n,
                     (long long)c->key.k, c->key.flags);
    const unsigned char *bytes = (const unsigned char *)&c->algorithm;
    for (size_t i = 0; i < sizeof c->algorithm; i++) n += snprintf(line + n, sizeof line - (size_t)n, "%02x", bytes[i]);
    line[n++] = '\n';
    kept_append(p->file, line, (size_t)n);
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static void read_line(cuda_products *p, const char *line) {
    choice c = {0};
    long long m, n, k;
    int flags, used = 0;
    unsigned char *bytes = (unsigned char *)&c.algorithm;
    if (sscanf(line, "%lld %lld %lld %d %n", &m, &n, &k, &flags, &used) != 4 || m <= 0) return;
    const char *hex = line + used;
    for (size_t i = 0; i < sizeof c.algorithm; i++, hex += 2) {
        int high = hex_digit(hex[0]), low = high < 0 ? -1 : hex_digit(hex[1]);
        if (low < 0) return;
        bytes[i] = (unsigned char)(high * 16 + low);
    }
    c.key = (shape_key){m, n, k, flags, 0};
    choice *to = find(p, &c.key);
    if (to) *to = c;
}

static void read_choices(cuda_products *p) {
    char line[512];
    FILE *f = *p->file ? fopen(p->file, "r") : NULL;
    if (!f) return;
    while (fgets(line, sizeof line, f)) read_line(p, line);
    fclose(f);
}

/* ---- products -------------------------------------------------------------------------------------------- */

size_t cuda_products_scratch(void) {
    return WORKSPACE_BYTES;
}

ravel_status cuda_products_open(train_device *d, ravel_error *err) {
    cuda_products *p = calloc(1, sizeof *p);
    char name[64];
    if (!p) return ravel_error_set(err, RAVEL_E_MEMORY, "no memory for the table of matrix products");
    if (cublasLtCreate(&p->handle) || cudaEventCreate(&p->begin) || cudaEventCreate(&p->end)) {
        free(p);
        return ravel_error_set(err, RAVEL_E_DEVICE, "cuBLASLt could not be opened on GPU %d", d->index);
    }
    snprintf(name, sizeof name, "cublaslt-%zu", cublasLtGetVersion());
    kept_path(d->cache, d->index, name, "txt", p->file, sizeof p->file);
    read_choices(p);
    d->products = p;
    return RAVEL_OK;
}

void cuda_products_close(train_device *d) {
    if (!d->products) return;
    for (int i = 0; i < SHAPES; i++) call_free(&d->products->choices[i].made);
    cudaEventDestroy(d->products->end);
    cudaEventDestroy(d->products->begin);
    cublasLtDestroy(d->products->handle);
    free(d->products);
    d->products = NULL;
}

/* The algorithm for the product: chosen before, read from disk and accepted, or timed now. */
static cublasStatus_t find_algorithm(train_device *d, const train_matmul *p, const call *c, choice *place) {
    cublasLtMatmulHeuristicResult_t result;
    if (place->checked) return CUBLAS_STATUS_SUCCESS;
    if (place->key.m) {
        place->checked = cublasLtMatmulAlgoCheck(d->products->handle, c->operation, c->left, c->right, c->out, c->out,
                                                 &place->algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
                         result.workspaceSize <= WORKSPACE_BYTES;
        if (place->checked) return CUBLAS_STATUS_SUCCESS;
    }
    cublasStatus_t s = choose(d, p, &place->algorithm);
    if (s) return s;
    place->key = key_of(p);
    place->checked = 1;
    remember(d->products, place);
    return s;
}

static int same_sizes(const train_matmul *a, const train_matmul *b) {
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb && a->ldc == b->ldc;
}

/* Descriptors for the product, kept with its choice. */
static cublasStatus_t find_call(const train_matmul *p, choice *place) {
    call made;
    if (place->made.operation && same_sizes(p, &place->last)) return CUBLAS_STATUS_SUCCESS;
    cublasStatus_t s = call_make(p, &made);
    if (s) return s;
    call_free(&place->made);
    place->made = made;
    place->last = *p;
    return s;
}

void cuda_matmul(train_device *d, const train_matmul *p) {
    choice spare = {0};
    if (d->failed || p->m == 0 || p->n == 0) return;
    RAVEL_ASSERT(p->m > 0 && p->n > 0 && p->k > 0 && p->a && p->b && p->c);
    RAVEL_ASSERT(!p->batch_invariant || (p->trans_b && !p->trans_a));
    shape_key key = key_of(p);
    choice *place = find(d->products, &key);
    if (!place) place = &spare;
    cublasStatus_t s = find_call(p, place);
    if (!s) s = find_algorithm(d, p, &place->made, place);
    if (!s) s = issue(d, &place->made, p, p->c, &place->algorithm);
    call_free(&spare.made);
    if (!s) return;
    cuda_fail(d, RAVEL_E_DEVICE, "cuBLASLt: product of [%lld, %lld] and [%lld, %lld]: %s", (long long)p->m,
              (long long)p->k, (long long)p->k, (long long)p->n, cublasLtGetStatusString(s));
}
