/* The losses of train/kernels/loss.h on the device: per-row derivatives, and sums that are read back once per update.
 *
 * One block walks over all rows of a chunk, so the sums are added in an order that depends on the rows alone. A chunk
 * has at most some ten thousand rows, so the kernel takes tens of microseconds. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/vec.cuh"
#include "train/kernels/loss.h"

enum { THREADS = 1024, SUMS = sizeof(train_loss_sums) / sizeof(double), MAXIMA = 2 };
static_assert(sizeof(train_loss_sums) == 18 * sizeof(double), "the last two are maxima");

/* Loss j of row r: its contribution to the sums, and its derivative. */
__device__ static double nll_loss(const cuda_loss_args &a, int64_t r, int64_t j, train_loss_sums *s) {
    double l = a.rows.logprob[r], w = a.rows.weights[j];
    s->loss -= w * l;
    s->tokens += 1;
    s->nll -= l;
    if (a.rows.entropy) s->entropy += a.rows.entropy[r];
    return -w;
}

/* d(kl)/dl, and *value. */
__device__ static double divergence(int kind, double l, double f, double *value) {
    double d = l - f;
    if (kind == TRAIN_KL_K1) {
        *value = d;
        return 1;
    }
    if (kind == TRAIN_KL_K2) {
        *value = d * d / 2;
        return d;
    }
    double e = exp(-d);
    *value = e + d - 1;
    return 1 - e;
}

/* The correction by x = exp(log_ratio), as ravel__policy_weight. */
__device__ static double correction(const ravel_correction &c, double log_ratio, double *raw) {
    double x = exp(fmin(fmax(log_ratio, -20.0), 20.0));
    *raw = x;
    if (c.masked) return x >= c.low && x <= c.high ? x : 0;
    return fmin(fmax(x, c.low), c.high);
}

__device__ static double policy_loss(const cuda_loss_args &a, int64_t r, int64_t j, train_loss_sums *s) {
    const train_policy_terms &t = a.policy;
    double l = a.rows.logprob[r], w = a.rows.weights[j], o = a.rows.old ? a.rows.old[j] : l,
           advantage = a.rows.advantages[j];
    double importance = 1, entropy = a.rows.entropy ? a.rows.entropy[r] : 0;
    const ravel_correction &c = t.correction;
    const train_sequence_sums *all = t.sequence || c.sequence ? a.rows.sequences + a.rows.samples[j] : NULL;
    if (c.kind != RAVEL_CORRECTION_NONE && a.rows.generator) {
        double raw, unit = c.sequence ? 1 / all->tokens : 1;
        importance = correction(c, c.sequence ? all->gap : (c.now ? l : o) - a.rows.generator[j], &raw);
        s->corrected += unit;
        s->weight += unit * importance;
        s->weight_square += unit * importance * importance;
        s->raw_square += unit * raw * raw;
        s->outside += raw < c.low || raw > c.high ? unit : 0;
    }
    double step = l - o, share = 1, weight = w * importance;
    if (t.sequence) { /* every token of the sample moves the one ratio by its share */
        step = all->step / all->tokens;
        share = 1 / all->tokens;
    }
    double ratio = exp(step), low = 1 - t.clip_low, high = 1 + t.clip_high;
    double plain = -ratio * advantage, cut = -fmin(fmax(ratio, low), high) * advantage;
    double surrogate = fmax(plain, cut);
    bool clipped = cut > plain;
    if (t.dual_clip > 0 && advantage < 0 && surrogate > -t.dual_clip * advantage) {
        surrogate = -t.dual_clip * advantage;
        clipped = true;
    }
    double slope = clipped ? 0 : -ratio * advantage;
    if (c.now) {
        surrogate = -advantage * l;
        slope = -advantage;
        clipped = false;
    }
    double coef = weight * slope;
    if (t.sequence) coef = all->weight * (c.sequence ? importance : 1) * slope * share;
    double loss = weight * surrogate;
    if (t.kl != 0) {
        double value, derivative = divergence(t.kl_kind, l, a.rows.reference[j], &value);
        loss += w * t.kl * value;
        coef += w * t.kl * derivative;
        s->kl += value;
    }
    loss -= w * t.entropy * entropy;
    s->loss += loss;
    s->tokens += 1;
    s->nll -= l;
    s->entropy += entropy;
    s->ratio += ratio;
    s->ratio_max = fmax(s->ratio_max, ratio);
    s->clipped += clipped && advantage != 0 ? 1 : 0;
    s->approx_kl += exp(l - o) - (l - o) - 1;
    if (t.gap != TRAIN_GAP_NONE && a.rows.generator) {
        double gap = fabs((t.gap == TRAIN_GAP_OLD ? o : l) - a.rows.generator[j]);
        s->gap += gap;
        s->gap_exp += exp(gap);
        s->gap_max = fmax(s->gap_max, gap);
        s->gap_tokens += 1;
    }
    return coef;
}

/* All losses of row r. */
__device__ static void add_row(const cuda_loss_args &a, int64_t r, train_loss_sums *s) {
    double coef = 0, weight = 0;
    int64_t first = a.rows.first ? a.rows.first[r] : r, end = a.rows.first ? a.rows.first[r + 1] : r + 1;
    for (int64_t k = first; k < end; k++) {
        int64_t j = a.rows.first ? a.rows.list[k] : k;
        coef += a.has_policy ? policy_loss(a, r, j, s) : nll_loss(a, r, j, s);
        weight += a.rows.weights[j];
    }
    a.rows.coef[r] = (float)coef;
    if (a.rows.entropy_coef) a.rows.entropy_coef[r] = a.has_policy ? (float)(-weight * a.policy.entropy) : 0;
}

__global__ static void __launch_bounds__(THREADS) loss_rows(cuda_loss_args a) {
    __shared__ double slots[THREADS / 32][SUMS];
    union {
        train_loss_sums named;
        double each[SUMS];
    } s;
    for (int i = 0; i < SUMS; i++) s.each[i] = 0;
    for (int64_t r = threadIdx.x; r < a.rows.rows; r += THREADS) add_row(a, r, &s.named);
    for (int i = 0; i < SUMS; i++) {
        for (int step = 16; step > 0; step /= 2) {
            double other = __shfl_xor_sync(0xffffffffu, s.each[i], step);
            s.each[i] = i >= SUMS - MAXIMA ? fmax(s.each[i], other) : s.each[i] + other;
        }
        if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32][i] = s.each[i];
    }
    __syncthreads();
    if (threadIdx.x >= SUMS) return;
    int i = threadIdx.x;
    double *to = (double *)a.rows.sums + i, total = *to;
    for (int warp = 0; warp < THREADS / 32; warp++)
        total = i >= SUMS - MAXIMA ? fmax(total, slots[warp][i]) : total + slots[warp][i];
    *to = total;
}

/* Losses of a sample lie together. The warp at a sample's first one adds them all; the other warps have nothing to
 * do. */
__global__ static void sequence_sums(cuda_loss_args a, train_sequence_sums *sequences) {
    int64_t first = ((int64_t)blockIdx.x * 256 + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    int64_t losses = a.rows.first ? a.rows.losses : a.rows.rows;
    if (first >= losses) return;
    int32_t sample = a.rows.samples[first];
    if (first > 0 && a.rows.samples[first - 1] == sample) return;
    double step = 0, tokens = 0, gap = 0, weight = 0;
    const ravel_correction &c = a.policy.correction;
    bool corrects = c.kind != RAVEL_CORRECTION_NONE && a.rows.generator;
    for (int64_t r = first + lane; r < losses && a.rows.samples[r] == sample; r += 32) {
        double l = a.rows.logprob[a.rows.first ? a.rows.row_of[r] : r], o = a.rows.old ? a.rows.old[r] : l;
        double from = corrects ? (c.now ? l : o) - a.rows.generator[r] : 0, raw;
        step += l - o;
        tokens += 1;
        gap += c.sequence ? from : 0;
        weight += a.rows.weights[r] * (corrects && !c.sequence ? correction(c, from, &raw) : 1);
    }
    for (int jump = 16; jump > 0; jump /= 2) {
        step += __shfl_xor_sync(0xffffffffu, step, jump);
        tokens += __shfl_xor_sync(0xffffffffu, tokens, jump);
        gap += __shfl_xor_sync(0xffffffffu, gap, jump);
        weight += __shfl_xor_sync(0xffffffffu, weight, jump);
    }
    if (lane > 0) return;
    sequences[sample].step += step;
    sequences[sample].tokens += tokens;
    sequences[sample].gap += gap;
    sequences[sample].weight += weight;
}

extern "C" void cuda_loss(cudaStream_t stream, const cuda_loss_args *a) {
    if (a->rows.rows > 0) loss_rows<<<1, THREADS, 0, stream>>>(*a);
}

extern "C" void cuda_sequence_sums(cudaStream_t stream, const cuda_loss_args *a, train_sequence_sums *sequences) {
    int64_t losses = a->rows.first ? a->rows.losses : a->rows.rows;
    if (losses > 0) sequence_sums<<<(unsigned)((losses + 7) / 8), 256, 0, stream>>>(*a, sequences);
}
