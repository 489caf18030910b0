/* train/learn/choice.h: which model, on which device, from a configuration.
 *
 *     train_shape(&choice, &shape, &err);                        the shape of --model, --shape, or by numbers
 *     train_device_open(&choice, NULL, &kernels, &device, &err); the kernel set and one of its devices
 */
#ifndef TRAIN_CHOICE_H
#define TRAIN_CHOICE_H

#include <ravel/shape.h>

#include "train/kernels/kernels.h"
#include "train/model/params.h"

/* auto: NCCL if every trainer has a GPU of its own and NCCL can be loaded, else page-locked host memory. */
typedef enum train_wire { TRAIN_WIRE_AUTO, TRAIN_WIRE_NCCL, TRAIN_WIRE_HOST } train_wire;
#define TRAIN_WIRE_CHOICES "auto|nccl|host"

typedef struct train_model_choice {
    const char *model;      /* a Hugging Face folder: config.json and weights */
    const char *shape;      /* a config.json or a published name: new weights */
    const char *kernels;    /* kernel set, or "auto" */
    const char *set;        /* by train_choice_settle: the set that is taken */
    int32_t threads;        /* of each rank; 0: train_threads chooses */
    int32_t recompute;      /* train_recompute */
    int32_t tree_attention; /* train_tree_attention */
    const char *devices;    /* of a GPU's kernel set: "auto", or GPUs for the ranks of a machine, "0,1,2,3" */
    int32_t gpu;            /* this rank's, from `devices` (train/run/config/devices.h) */
    int32_t wire;           /* train_wire: over what arrays of GPUs travel between trainers; never TRAIN_WIRE_AUTO after
                              train_devices_assign */
    int32_t deterministic;  /* the same bits on every run; 0: sums in any order if that is faster */
    int32_t sequence;       /* sequence parallel, if tp > 1 */
    int32_t graphs;         /* train_graphs, of models and of generators */
    uint64_t init_seed;
    double init_std;
    /* a shape by numbers, if neither is given: a byte model */
    int64_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab;
    int64_t experts, experts_active, expert_ffn; /* experts 0: dense; expert_ffn 0: ffn / experts_active */
    const char *adapter;      /* a PEFT folder that training begins with, or an answer is made with; NULL: none */
    const char *lora_targets; /* NULL: all-linear */
    double lora_alpha;        /* 0: twice the rank */
    double lora_dropout;      /* 0 */
    int32_t lora_rank;        /* of a new adapter; 0: the model is trained, unless there is `adapter` */
    int32_t lora_rslora;
    train_lora lora; /* by train_choice_settle from those above; rank 0: none */
} train_model_choice;

/* As the help explains them; there are more: kernels.c. */
#define TRAIN_KERNELS_NAMES "auto|ref|cpu|cpu-bf16|cpu-avx512bf16|cuda"
#define TRAIN_KERNELS_HELP                                                                                                  \
    "kernel set: cpu (f32), cpu-bf16 (weights in bf16), cpu-avx512bf16 (and large products in bf16), cuda, ref; one for a " \
    "kind of processor: cpu-avx512, cpu-avx2, cpu-base, cpu-avx512-bf16, cpu-avx2-bf16, cpu-base-bf16; auto: cpu-bf16 or "  \
    "cpu-avx512bf16 for frozen weights in bf16, cpu for others"

/* Sets `lora`, from the folder of the adapter or a new one's, and `set`. `frozen`: the model's weights are only read,
 * as they are beside an adapter. Of kernels "auto" takes for frozen weights in bf16 those that read them as they are in
 * the file (cpu-avx512bf16 on processors with AVX512-BF16, else cpu-bf16), and "cpu" for all others. */
ravel_status train_choice_settle(train_model_choice *choice, int frozen, ravel_error *err);
/* Its set of kernels; E_ARGUMENT and E_UNSUPPORTED as train_kernels_find. */
ravel_status train_choice_kernels(const train_model_choice *choice, const train_kernels **kernels, ravel_error *err);

/* A byte model: a byte is a token (0 .. 255), and two more. */
enum {
    TRAIN_TOKEN_BOS = 256,  /* begins a sample */
    TRAIN_TOKEN_EOS = 257,  /* ends an answer */
    TRAIN_TOKENS = 258,     /* the smallest vocabulary of a byte model */
    TRAIN_BYTE_VOCAB = 4096 /* and the largest: a larger one without a tokenizer that can be read is not of bytes */
};

ravel_status train_shape(const train_model_choice *choice, ravel_shape *shape, ravel_error *err);

/* The tokens that end an answer: those of the model's folder, or the byte model's. stops[TRAIN_STOPS]. */
enum { TRAIN_STOPS = 16 };
/* "257,3" as stops[TRAIN_STOPS]; returns their number, or 0 with an error. */
int32_t train_stops_parse(const char *text, int64_t vocab, int32_t *stops, ravel_error *err);
void train_stop_tokens(const train_model_choice *choice, int32_t *stops, int32_t *count);

/* Threads per rank: choice->threads, or an equal share of `processors` over `ranks` ranks that work at the same time.
 * Small models get fewer: a micro-batch of `budget` tokens must be at least 1 GFLOP per thread. */
int32_t train_threads(const train_model_choice *choice, const ravel_shape *shape, int64_t budget, int32_t processors,
                      int32_t ranks);

/* "auto": *count = 0; "2" or "0,1,2,3" as list[TRAIN_GPUS]. E_ARGUMENT names the option. */
enum { TRAIN_GPUS = 64 }; /* of one machine */
ravel_status train_gpus_parse(const char *name, const char *text, int32_t *list, int32_t *count, ravel_error *err);

/* On GPU choice->gpu. */
ravel_status train_device_open(const train_model_choice *choice, const ravel_allocator *allocator,
                               const train_kernels **kernels, train_device **device, ravel_error *err);

#endif
