/* Layouts of real engines: what each rank has of a tensor, in memory that is padded, transposed, chunked or mapped, from and
 * to a plain one. Every element says where it is in the whole tensor. */
#include "tests/unit/refit_case.h"

#include "refit/model/holding.h"

#include <stddef.h>
#include <stdlib.h>

enum { ROWS = 10, COLUMNS = 6, RANKS = 4, ROOM = 512 };

typedef struct layout_case {
    void (*cut)(ravel_refit_tensor *t, int32_t rank);
    float memory[RANKS + 1][ROOM];
    ravel_refit_tensor tensors[RANKS + 1];
} layout_case;

static float truth(int64_t row, int64_t column) {
    return (float)(1000 + row * 100 + column);
}

/* Ranks 1 to 4 hold the layout, rank 0 the whole: forwards (0 sends) and back. */
static ravel_status move(ravel_comm *comm, few_ranks *f, ravel_error *err) {
    layout_case *l = f->extra;
    int32_t rank = ravel_comm_rank(comm);
    ravel_refit_source source = {.size = sizeof source, .tensors = &l->tensors[rank], .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &l->tensors[rank], .count = 1};
    ravel_status status = ravel_refit_run(comm, rank ? NULL : &source, rank ? &sink : NULL, &f->options, 1, NULL, err);
    if (status == RAVEL_OK && rank == 0)
        for (int i = 0; i < ROWS * COLUMNS; i++) l->memory[0][i] = 0;
    if (status == RAVEL_OK)
        status = ravel_refit_run(comm, rank ? &source : NULL, rank ? NULL : &sink, &f->options, 2, NULL, err);
    return status;
}

static bool round_trip(layout_case *l, void (*cut)(ravel_refit_tensor *t, int32_t rank), ravel_error *err) {
    few_ranks f = {.body = move, .extra = l};
    ravel_refit_options_default(&f.options);
    for (int32_t r = 0; r <= RANKS; r++) {
        for (int i = 0; i < ROOM; i++) l->memory[r][i] = -1;
        l->tensors[r] = (ravel_refit_tensor){.name = "w", .dtype = RAVEL_F32, .ndim = 2, .dims = {ROWS, COLUMNS}};
        l->tensors[r].data = l->memory[r];
        if (r > 0) cut(&l->tensors[r], r - 1);
    }
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) l->memory[0][i] = truth(i / COLUMNS, i % COLUMNS);
    if (run_few(&f, RANKS + 1, err) != RAVEL_OK) return false;
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        if (l->memory[0][i] != truth(i / COLUMNS, i % COLUMNS)) return false;
    return true;
}

/* Rows or columns start .. start+extent; nothing: part 0 of more parts than elements. */
static void box(ravel_refit_tensor *t, int32_t dim, int64_t start, int64_t extent) {
    if (extent <= 0) {
        t->parts[dim] = ROWS + 1;
        return;
    }
    t->extent[!dim] = t->dims[!dim];
    t->start[dim] = start;
    t->extent[dim] = extent;
}

static void as_chunks(ravel_refit_tensor *t, int32_t rank) {
    box(t, 0, 3 * (int64_t)rank, rank < 3 ? 3 : 1);
}

/* 2, 2, 2, 0 columns. A framework has no memory for a piece of nothing. */
static void as_chunks_of_few(ravel_refit_tensor *t, int32_t rank) {
    box(t, 1, 2 * (int64_t)rank, rank < 3 ? 2 : 0);
    if (ravel_refit_tensor_elements(t) == 0) t->data = NULL;
}

/* 4 rows each of 16; the third has 2 real ones, the last none. */
static void as_padded(ravel_refit_tensor *t, int32_t rank) {
    box(t, 0, 4 * (int64_t)rank, rank < 2 ? 4 : rank < 3 ? 2 : 0);
}

static void as_transposed(ravel_refit_tensor *t, int32_t rank) {
    t->parts[1] = 2;
    t->index[1] = rank % 2;
    t->strides[0] = 1;
    t->strides[1] = ROWS;
}

TEST(refit_layouts_of_engines) {
    static layout_case l;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(round_trip(&l, as_chunks, &err));
    CHECK(l.memory[1][0] == truth(0, 0) && l.memory[4][0] == truth(9, 0) && l.memory[4][COLUMNS] == -1);
    CHECK(round_trip(&l, as_chunks_of_few, &err));
    CHECK(l.memory[3][1] == truth(0, 5) && !l.tensors[RANKS].data && l.memory[4][0] == -1);
    CHECK(round_trip(&l, as_padded, &err));
    CHECK(l.memory[3][COLUMNS] == truth(9, 0) && l.memory[3][2 * COLUMNS] == -1 && l.memory[4][0] == -1);
    CHECK(round_trip(&l, as_transposed, &err));
    CHECK(l.memory[1][1] == truth(1, 0) && l.memory[2][0] == truth(0, 3));
}

/* Experts where a map says they are: this rank has experts 5, none, 2. */
static ravel_status mapped_body(ravel_comm *comm, few_ranks *f, ravel_error *err) {
    static const int32_t map[] = {5, -1, 2};
    int32_t rank = ravel_comm_rank(comm);
    float all[6][4], stack[3][4];
    char names[6][48];
    ravel_refit_tensor experts[6], fused = {.name = "layers.0.w2", .dtype = RAVEL_F32, .ndim = 2, .dims = {3, 4}};
    ravel_refit_rule rule = {.name = "layers.*.w2", .parts = "layers.*.experts.#.down", .stack = 3, .map = map};
    for (int e = 0; e < 6; e++) {
        (void)snprintf(names[e], sizeof names[e], "layers.0.experts.%d.down", e);
        experts[e] = float_tensor(names[e], all[e], 4);
        fill_floats(all[e], 4, 100.0F * (float)e);
    }
    fill_floats(stack[0], 12, -50);
    fused.data = stack;
    ravel_refit_source source = {.size = sizeof source, .tensors = experts, .count = 6};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &fused, .count = 1, .rules = &rule, .rule_count = 1};
    ravel_status status = ravel_refit_run(comm, rank ? NULL : &source, rank ? &sink : NULL, &f->options, 1, NULL, err);
    if (rank && status == RAVEL_OK)
        EXPECT(floats_are(stack[0], 4, 500) && floats_are(stack[2], 4, 200) && stack[1][0] == -46);
    return status;
}

TEST(refit_layouts_map_experts) {
    few_ranks f = {.body = mapped_body};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&f.options);
    f.options.ignore_extra = 1;
    CHECK_OK(run_few(&f, 2, &err), &err);
}

TEST(refit_rules_of_every_framework) {
    static const char *const sets[] = {"vllm", "sglang", "megatron", "fsdp2", "hf"};
    ravel_refit_rule rules[64];
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        int64_t dense = ravel_refit_rules_named(sets[i], 8, 2, 0, rules, 64);
        int64_t sparse = ravel_refit_rules_named(sets[i], 8, 2, 4, rules, 64);
        CHECK(dense > 0 && sparse >= dense && sparse <= 64);
        for (int64_t r = 0; r < sparse; r++) CHECK(rules[r].name && rules[r].parts);
    }
    CHECK_EQ(ravel_refit_rules_named("vllm", 8, 2, 4, rules, 64), 11);
    CHECK(rules[0].heads == 8 && rules[4].stack == 4);
    CHECK_EQ(ravel_refit_rules_named("nobody", 8, 2, 0, rules, 64), 0);
}

/* What the rules make of a framework's names; the first of the parts. */
TEST(refit_rules_name_what_frameworks_call_it) {
    static const struct {
        const char *set, *name, *part;
    } rows[] = {
        {"vllm", "model.layers.3.mlp.shared_experts.gate_up_proj.weight",
         "model.layers.3.mlp.shared_experts.gate_proj.weight"},
        {"sglang", "model.layers.3.self_attn.qkv_proj.weight", "model.layers.3.self_attn.q_proj.weight"},
        {"megatron", "decoder.layers.3.mlp.experts.linear_fc1.weight12",
         "model.layers.3.mlp.experts.12.gate_proj.weight"},
        {"megatron", "decoder.layers.3.mlp.experts.linear_fc2.weight12",
         "model.layers.3.mlp.experts.12.down_proj.weight"},
        {"megatron", "decoder.layers.3.mlp.router.weight", "model.layers.3.mlp.gate.weight"},
        {"megatron", "output_layer.weight", "lm_head.weight"},
        {"megatron+tied", "output_layer.weight", "model.embed_tokens.weight"},
        {"vllm+tied", "lm_head.weight", "model.embed_tokens.weight"},
        {"fsdp2", "_orig_mod.model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"},
        {"fsdp2", "model.layers.3._checkpoint_wrapped_module.self_attn.q_proj.bias",
         "model.layers.3.self_attn.q_proj.bias"},
        {"fsdp2", "model.layers.3._orig_mod.input_layernorm.weight", "model.layers.3.input_layernorm.weight"},
        {"hf", "model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"},
    };
    float data[64];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ravel_refit_rule rules[64];
        ravel_error err = RAVEL_ERROR_INIT;
        ravel__arena arena;
        ravel__holding holding = {0};
        ravel_refit_tensor t = {.name = rows[i].name, .dtype = RAVEL_F32, .ndim = 2, .dims = {16, 4}, .data = data};
        ravel__arena_init(&arena, NULL, 1024);
        int64_t count = ravel_refit_rules_named(rows[i].set, 4, 2, 0, rules, 64);
        CHECK_OK(ravel__holding_make(&t, 1, rules, count, 0, "source", &arena, &holding, &err), &err);
        CHECK_STR(holding.items[0].name, rows[i].part);
        ravel__holding_free(&holding, arena.allocator);
        ravel__arena_free(&arena);
    }
    ravel_refit_rule rules[64];
    CHECK_EQ(ravel_refit_rules_named("vllm+tide", 4, 2, 0, rules, 64), 0);
}

/* ---- tied weights ------------------------------------------------------------------------------------------- */

enum { VOCABULARY = 700, WIDTH = 8, SAME = 2100 };

/* Rank 0 has the embedding, and with `extra` a copy of it; rank 1 an embedding and an output layer, in memory of their own. */
static ravel_status tied_body(ravel_comm *comm, few_ranks *f, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm), both = rank == 1 || f->extra;
    float *memory = calloc((size_t)4 * VOCABULARY * WIDTH, sizeof *memory);
    static const char *const names[2][2] = {{"model.embed_tokens.weight", "lm_head.weight"},
                                            {"embedding.word_embeddings.weight", "output_layer.weight"}};
    ravel_refit_tensor t[2];
    ravel_refit_rule rules[64];
    ravel_refit *refit = NULL;
    if (!memory) return RAVEL_E_MEMORY;
    for (int i = 0; i < 2; i++) {
        t[i] = (ravel_refit_tensor){.name = names[rank][i], .dtype = RAVEL_F32, .ndim = 2, .dims = {VOCABULARY, WIDTH}};
        t[i].data = memory + (ptrdiff_t)i * VOCABULARY * WIDTH;
        t[i].spare = memory + (ptrdiff_t)(i + 2) * VOCABULARY * WIDTH;
    }
    int64_t count = ravel_refit_rules_named(rank ? "megatron+tied" : "hf+tied", 4, 2, 0, rules, 64);
    ravel_refit_source source = {.size = sizeof source, .tensors = t, .count = 1 + both, .rules = rules};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = t, .count = 2, .rules = rules};
    source.rule_count = sink.rule_count = count;
    ravel_status status =
        ravel_refit_create(comm, rank ? NULL : &source, rank ? &sink : NULL, &f->options, &refit, err);
    for (int64_t version = 1; version <= 3 && status == RAVEL_OK; version++) {
        ravel_refit_report report = {.size = sizeof report};
        /* version 3 changes the end only, for the delta */
        if (rank == 0 && version < 3) fill_floats(memory, VOCABULARY * WIDTH, (float)(100 * version));
        if (rank == 0 && version == 3) fill_floats(memory + SAME, VOCABULARY * WIDTH - SAME, 200.5F);
        status = ravel_refit_update(refit, rank ? 0 : version, &report, err);
        if (status != RAVEL_OK) break;
        EXPECT(report.bytes_needed == VOCABULARY * WIDTH * 4); /* once */
        for (int i = 0; i < 2 && rank; i++) {
            const float *live = ravel_refit_data(refit, i);
            EXPECT(floats_are(live, SAME, version == 1 ? 100 : 200));
            EXPECT(floats_are(live + SAME, VOCABULARY * WIDTH - SAME, version == 3 ? 200.5F : 100 * (float)version));
        }
    }
    ravel_refit_free(refit);
    free(memory);
    return status;
}

TEST(refit_tied_weights_are_sent_once_and_loaded_into_both) {
    for (int32_t i = 0; i < 12; i++) {
        few_ranks f = {.body = tied_body, .extra = i % 2 ? &f : NULL};
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_refit_options_default(&f.options);
        f.options.stage = i % 3;
        f.options.delta = i / 6;
        f.options.delta_block = 4096;
        CHECK_OK(run_few(&f, 2, &err), &err);
    }
}

TEST(refit_two_pieces_of_one_name_are_no_tie) {
    float data[32];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *self = NULL;
    ravel_refit_tensor t[2] = {float_tensor("w", data, 16), float_tensor("w", data, 16)};
    for (int i = 0; i < 2; i++) t[i].parts[0] = 2, t[i].index[0] = i;
    ravel_refit_source source = {.size = sizeof source, .tensors = t, .count = 2};
    ravel_refit *refit = NULL;
    CHECK_OK(ravel_comm_self(NULL, &self, &err), &err);
    CHECK_EQ(ravel_refit_create(self, &source, NULL, NULL, &refit, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "\"w\" twice");
    ravel_comm_free(self);
}
