/* Drawing a token from a row of logits, one block per row.
 *
 * Tokens that stay are always the first N in the order "likeliest first, of equals the lower id": top-k, top-p and
 * min-p each cut that order somewhere, and N is the least. Logits are bf16, so a logit is one of 65,536 keys and tokens
 * of one key weigh the same: a histogram of the keys' high bytes, and then of the low bytes inside one high byte, finds
 * the N-th token without sorting.
 *
 * Weights are added as integers, in units of 2^-48 of the row's whole. So sums do not depend on the order of the
 * additions, and the token that is drawn depends on the row alone.
 *
 * To draw, the row is cut into at most RUNS runs of whole rounds of ROUND tokens (eight per lane of a warp). Warps sum
 * the weights of runs; a scan of the sums finds the run in which the token lies, and one warp walks over that run
 * alone. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/part.cuh"

enum { THREADS = ROW_THREADS, WARPS = THREADS / 32, ROUND = 256, RUNS = THREADS };
typedef unsigned long long units;

__device__ static inline unsigned key_of(bf16 x) {
    unsigned bits = __bfloat16_as_ushort(x);
    if (bits == 0x8000) bits = 0; /* -0 */
    return bits & 0x8000 ? ~bits & 0xffff : bits | 0x8000;
}

__device__ static inline float value_of(unsigned key) {
    unsigned short bits = (unsigned short)(key & 0x8000 ? key & 0x7fff : ~key & 0xffff);
    return __bfloat162float(__ushort_as_bfloat16(bits));
}

__device__ static inline units weight_of(unsigned key, float scale, float lse) {
    return (units)(expf(scale * value_of(key) - lse) * 281474976710656.0f);
}

/* Keys of tokens first .. first + 7; 0, which is no logit's key, past the end. */
__device__ static inline void eight_keys(const bf16 *row, int first, int end, bool aligned, unsigned *keys) {
    if (aligned && first + 8 <= end) {
        uint4 raw = *reinterpret_cast<const uint4 *>(row + first);
        const bf16 *x = reinterpret_cast<const bf16 *>(&raw);
#pragma unroll
        for (int j = 0; j < 8; j++) keys[j] = key_of(x[j]);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) keys[j] = first + j < end ? key_of(row[first + j]) : 0;
}

struct row_state {
    units weights[256]; /* of tokens by high byte, then by low byte */
    unsigned counts[256];
    part slots[WARPS];
    units warp_units[WARPS];
    units run_units[RUNS]; /* what stays of each run */
    units run_ties[RUNS];  /* tokens at the cut's key, through each run */
    /* the cut: tokens above `key` stay, and the first `ties` of those at it */
    unsigned key, ties;
    units total;
    int64_t kept;
};

/* Histogram of the low bytes of tokens whose high byte is `high`; of high bytes where `high` is negative. */
__device__ static void histogram(row_state *s, const bf16 *row, int vocab, int high, float scale, float lse) {
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += THREADS) s->counts[i] = 0, s->weights[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < vocab; i += THREADS) {
        unsigned key = key_of(row[i]);
        if (high >= 0 && (int)(key >> 8) != high) continue;
        unsigned bin = high < 0 ? key >> 8 : key & 255;
        atomicAdd(&s->counts[bin], 1u);
        atomicAdd(&s->weights[bin], weight_of(key, scale, lse));
    }
    __syncthreads();
}

/* The N-th token from the top, where N is the least number with count >= most, or weight >= target. Sets the cut, and
 * returns the weight of what stays. */
__device__ static units cut_at(row_state *s, const bf16 *row, int vocab, int64_t most, units target, float scale,
                               float lse) {
    __shared__ int bin;
    __shared__ int64_t above;
    __shared__ units above_units;
    for (int level = 0; level < 2; level++) {
        histogram(s, row, vocab, level == 0 ? -1 : bin, scale, lse);
        int chosen_high = bin; /* of the first level, read before it changes */
        __syncthreads();
        if (threadIdx.x == 0) {
            int64_t count = level == 0 ? 0 : above;
            units sum = level == 0 ? 0 : above_units;
            int b = 255;
            while (b > 0 && count + s->counts[b] < most && sum + s->weights[b] < target) {
                count += s->counts[b];
                sum += s->weights[b--];
            }
            above = count;
            above_units = sum;
            bin = b;
            if (level == 1) {
                unsigned key = (unsigned)chosen_high << 8 | (unsigned)b;
                units each = weight_of(key, scale, lse);
                int64_t ties = min((int64_t)s->counts[b], most - count);
                if (each > 0 && target > sum) ties = min(ties, (int64_t)((target - sum + each - 1) / each));
                s->key = key;
                s->ties = (unsigned)max((int64_t)1, ties);
                s->kept = count + s->ties;
                s->total = sum + each * s->ties;
            }
        }
        __syncthreads();
    }
    return s->total;
}

__device__ static int64_t largest(row_state *s, const bf16 *row, int vocab) {
    __shared__ unsigned best;
    __shared__ int place;
    if (threadIdx.x == 0) best = 0, place = vocab;
    __syncthreads();
    unsigned key = 0;
    for (int i = threadIdx.x; i < vocab; i += THREADS) key = max(key, key_of(row[i]));
    atomicMax(&best, key);
    __syncthreads();
    for (int i = threadIdx.x; i < vocab; i += THREADS)
        if (key_of(row[i]) == best) atomicMin(&place, i);
    __syncthreads();
    (void)s;
    return place;
}

/* Number of tokens of a warp's run at the cut's key. */
__device__ static unsigned count_ties(const row_state *s, const bf16 *row, int begin, int end, bool aligned) {
    unsigned ties = 0;
    for (int base = begin; base < end; base += 256) {
        unsigned keys[8];
        eight_keys(row, base + (threadIdx.x % 32) * 8, end, aligned, keys);
#pragma unroll
        for (int j = 0; j < 8; j++) ties += keys[j] == s->key;
    }
    return __reduce_add_sync(0xffffffffu, ties);
}

/* Walks over a warp's run of tokens, in order, eight per lane. Returns the weight that stays; with `token`, stops at
 * the first token at which the sum passes `stop` and sets it (or the last that stays). `ties` have come before the
 * run. */
__device__ static units walk(const row_state *s, const bf16 *row, int begin, int end, bool aligned, unsigned ties,
                             float scale, float lse, units stop, int *token) {
    units sum = 0;
    int lane = threadIdx.x % 32;
    for (int base = begin; base < end; base += 256) {
        int first = base + lane * 8;
        unsigned keys[8], own = 0;
        units weights[8], mine = 0;
        eight_keys(row, first, end, aligned, keys);
#pragma unroll
        for (int j = 0; j < 8; j++) own += keys[j] == s->key;
        unsigned before = own; /* ties of the lanes before this one, and of the run before this round */
        for (int step = 1; step < 32; step *= 2) {
            unsigned other = __shfl_up_sync(0xffffffffu, before, step);
            if (lane >= step) before += other;
        }
        unsigned all = __shfl_sync(0xffffffffu, before, 31);
        before += ties - own;
        ties += all;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            bool tie = keys[j] == s->key, stays = keys[j] > s->key || (tie && keys[j] && before < s->ties);
            before += tie;
            weights[j] = stays ? weight_of(keys[j], scale, lse) : 0;
            mine += weights[j];
        }
        units through = mine;
        for (int step = 1; step < 32; step *= 2) {
            units other = __shfl_up_sync(0xffffffffu, through, step);
            if (lane >= step) through += other;
        }
        units round = __shfl_sync(0xffffffffu, through, 31);
        if (token) {
            unsigned passed = __ballot_sync(0xffffffffu, mine > 0 && sum + through > stop);
            unsigned kept = __ballot_sync(0xffffffffu, mine > 0);
            int chosen = passed ? __ffs(passed) - 1 : kept ? 31 - __clz(kept) : -1, place = -1;
            if (lane == chosen) {
                units at = sum + through - mine;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    if (weights[j] == 0 || (place >= 0 && at > stop)) continue;
                    at += weights[j];
                    place = first + j;
                }
            }
            if (chosen >= 0) *token = __shfl_sync(0xffffffffu, place, chosen);
            if (passed) return sum;
        }
        sum += round;
    }
    return sum;
}

/* Weight that stays of a run in which all ties stay, or none: no order within the run matters. */
__device__ static units run_sum(const row_state *s, const bf16 *row, int begin, int end, bool aligned, bool ties_stay,
                                float scale, float lse) {
    units sum = 0;
    for (int base = begin; base < end; base += ROUND) {
        unsigned keys[8];
        eight_keys(row, base + (threadIdx.x % 32) * 8, end, aligned, keys);
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (keys[j] > s->key || (keys[j] == s->key && keys[j] && ties_stay)) sum += weight_of(keys[j], scale, lse);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

/* The sum of x over the threads up to and with this one. */
__device__ static units scan(units x, units *slots) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        units other = __shfl_up_sync(0xffffffffu, x, step);
        if (lane >= step) x += other;
    }
    __syncthreads();
    if (lane == 31) slots[warp] = x;
    __syncthreads();
    for (int w = 0; w < warp; w++) x += slots[w];
    return x;
}

__device__ static int draw(row_state *s, const bf16 *row, int vocab, bool aligned, bool all, float scale, float lse,
                           float uniform) {
    __shared__ int token, chosen, last;
    __shared__ units total_units, before_chosen;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, run = threadIdx.x;
    int each = ((vocab + RUNS - 1) / RUNS + ROUND - 1) / ROUND * ROUND, count = (vocab + each - 1) / each;
    if (!all) {
        for (int r = warp; r < count; r += WARPS) {
            unsigned own = count_ties(s, row, r * each, min(vocab, (r + 1) * each), aligned);
            if (lane == 0) s->run_ties[r] = own;
        }
        __syncthreads();
        units through = scan(run < count ? s->run_ties[run] : 0, s->warp_units);
        s->run_ties[run] = through; /* its own place: nobody else reads it before the barrier */
    } else
        s->run_ties[run] = 0;
    if (run == 0) chosen = RUNS, last = -1;
    __syncthreads();
    for (int r = warp; r < count; r += WARPS) {
        int begin = r * each, end = min(vocab, begin + each);
        units before = r ? s->run_ties[r - 1] : 0, through = s->run_ties[r];
        units sum = before < s->ties && through > s->ties
                        ? walk(s, row, begin, end, aligned, (unsigned)before, scale, lse, 0, NULL)
                        : run_sum(s, row, begin, end, aligned, through <= s->ties, scale, lse);
        if (lane == 0) s->run_units[r] = sum;
    }
    __syncthreads();
    units own = run < count ? s->run_units[run] : 0, through = scan(own, s->warp_units);
    if (run == RUNS - 1) total_units = through;
    __syncthreads();
    units total = total_units, stop = (units)((double)uniform * (double)total);
    if (own > 0 && through > stop) atomicMin(&chosen, run); /* the run in which the sum passes, */
    if (own > 0) atomicMax(&last, run);                     /* else the last that has anything */
    __syncthreads();
    int found_run = chosen < RUNS ? chosen : max(last, 0);
    if (run == found_run) before_chosen = through - own;
    if (run == 0) s->total = total;
    __syncthreads();
    if (warp == 0) {
        int begin = found_run * each, end = min(vocab, begin + each), found = begin;
        units ties = found_run ? s->run_ties[found_run - 1] : 0;
        walk(s, row, begin, end, aligned, (unsigned)ties, scale, lse, stop > before_chosen ? stop - before_chosen : 0,
             &found);
        if (lane == 0) token = found;
    }
    __syncthreads();
    return token;
}

__global__ static void __launch_bounds__(THREADS) sample_rows(train_sample a) {
    __shared__ row_state s;
    int64_t r = blockIdx.x;
    const bf16 *row = (const bf16 *)a.logits + r * a.vocab;
    int vocab = (int)a.vocab;
    train_choice choice = a.choices[r];
    bool greedy = !(choice.temperature > 0), aligned = vocab % 8 == 0;
    float scale = greedy ? 1 : 1 / choice.temperature;
    part p = aligned ? row_part<true, false>(row, vocab, scale, s.slots)
                     : row_part<false, false>(row, vocab, scale, s.slots);
    float log_sum = logf(p.sum), lse = p.most + log_sum;
    if (greedy) {
        int64_t token = largest(&s, row, vocab);
        if (threadIdx.x > 0) return;
        a.tokens[r] = (int32_t)token;
        if (a.last) a.last[a.places[r]] = (int32_t)token;
        a.logprob[r] = (__bfloat162float(row[token]) - p.most) - log_sum;
        a.kept_logprob[r] = 0;
        return;
    }
    int64_t most = choice.top_k > 0 && choice.top_k < vocab ? choice.top_k : vocab;
    if (threadIdx.x == 0) s.key = 0, s.ties = (unsigned)vocab, s.kept = vocab, s.total = 0;
    __syncthreads();
    bool all = most == vocab && choice.top_p >= 1 && choice.min_p <= 0;
    if (!all) {
        units total = cut_at(&s, row, vocab, most, ~0ull, scale, lse);
        if (choice.top_p < 1) {
            units target = (units)ceil((double)choice.top_p * (double)total);
            cut_at(&s, row, vocab, most, target > 0 ? target : 1, scale, lse);
        }
        if (choice.min_p > 0) {
            unsigned least = key_of(row[largest(&s, row, vocab)]);
            float floor_log = scale * value_of(least) + logf(choice.min_p);
            /* tokens below the floor go: raise the cut to the lowest key that is not below it */
            if (threadIdx.x == 0 && scale * value_of(s.key) < floor_log) {
                unsigned low = s.key, high = least;
                while (low < high) {
                    unsigned middle = (low + high) / 2;
                    if (scale * value_of(middle) < floor_log)
                        low = middle + 1;
                    else
                        high = middle;
                }
                s.key = high;
                s.ties = (unsigned)vocab;
            }
            __syncthreads();
        }
    }
    int token = draw(&s, row, vocab, aligned, all, scale, lse, choice.uniform);
    if (threadIdx.x > 0) return;
    float logprob = (scale * __bfloat162float(row[token]) - p.most) - log_sum; /* as the head has it */
    a.tokens[r] = token;
    if (a.last) a.last[a.places[r]] = token;
    a.logprob[r] = logprob;
    a.kept_logprob[r] = all ? logprob : (float)(logprob - log((double)s.total / 281474976710656.0));
}

extern "C" void cuda_sample(cudaStream_t stream, const train_sample *a) {
    if (a->rows > 0) sample_rows<<<(unsigned)a->rows, THREADS, 0, stream>>>(*a);
}
