/* Products by OpenBLAS, for devices that were opened with it.
 *
 * Rows of C go in blocks of a fixed size, one task each, so that results do not depend on the number of threads; a
 * block is large, because OpenBLAS packs B again for each. OpenBLAS itself is held to one thread: that setting is the
 * process's, and is made when such a device is opened. */
#include "train/kernels/cpu/cpu.h"

#ifdef RAVEL_HAVE_OPENBLAS

#include <cblas.h>

enum { BLOCK = 1024 };

int train__blas_open(void) {
    openblas_set_num_threads(1);
    return 1;
}

static void block_task(const void *user, int64_t block, int32_t thread) {
    const train_matmul *x = user;
    const float *a = x->a;
    float *c = x->c;
    int64_t first = block * BLOCK, rows = train__min(BLOCK, x->m - first);
    (void)thread;
    cblas_sgemm(CblasRowMajor, x->trans_a ? CblasTrans : CblasNoTrans, x->trans_b ? CblasTrans : CblasNoTrans,
                (int)rows, (int)x->n, (int)x->k, 1, a + first * (x->trans_a ? 1 : x->lda), (int)x->lda, x->b,
                (int)x->ldb, x->add ? 1 : 0, c + first * x->ldc, (int)x->ldc);
}

void train__blas_matmul(train_device *d, const train_matmul *x) {
    RAVEL_ASSERT(x->n <= INT32_MAX && x->k <= INT32_MAX && x->lda <= INT32_MAX && x->ldb <= INT32_MAX);
    train__cpu_run(d, (x->m + BLOCK - 1) / BLOCK, block_task, x);
}

#else

int train__blas_open(void) {
    return 0;
}

void train__blas_matmul(train_device *d, const train_matmul *x) {
    (void)d, (void)x; /* no device is opened with it */
}

#endif
