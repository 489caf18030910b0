/* train/learn/choice.h: which model, on which device, from a configuration.
 *
 *     train_shape(&choice, &shape, &err);                        the shape of --model, --shape, or by numbers
 *     train_device_open(&choice, NULL, &kernels, &device, &err); the kernel set and one of its devices
 */
#ifndef TRAIN_CHOICE_H
#define TRAIN_CHOICE_H

#include <ravel/shape.h>

#include "train/kernels/kernels.h"

/* auto: NCCL where every trainer has a GPU of its own and NCCL can be loaded, else page-locked host memory. */
typedef enum train_wire { TRAIN_WIRE_AUTO, TRAIN_WIRE_NCCL, TRAIN_WIRE_HOST } train_wire;
#define TRAIN_WIRE_CHOICES "auto|nccl|host"

typedef struct train_model_choice {
    const char *model;     /* a Hugging Face folder: config.json and weights */
    const char *shape;     /* a config.json or a published name: new weights */
    const char *kernels;   /* kernel set */
    int32_t threads;       /* of each rank; 0: train_threads chooses */
    int32_t recompute;     /* train_recompute */
    const char *devices;   /* of a GPU's kernel set: "auto", or GPUs for the ranks of a machine, "0,1,2,3" */
    int32_t gpu;           /* this rank's, from `devices` (train/run/devices.h) */
    int32_t wire;          /* train_wire: over what arrays of GPUs travel between trainers; never TRAIN_WIRE_AUTO after
                              train_devices_assign */
    int32_t deterministic; /* the same bits on every run; 0: sums in any order where that is faster */
    int32_t sequence;      /* sequence parallel, where tp > 1 */
    int32_t graphs;        /* train_graphs, of models and of generators */
    uint64_t init_seed;
    double init_std;
    /* a shape by numbers, where neither is given: a byte model */
    int64_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab;
} train_model_choice;

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
