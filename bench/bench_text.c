/* Tokenizing. The golden tokenizer alone, and, where pip has brought the `tokenizers` package (mk/text-venv.sh), the
 * ratio to it on the same text in one process. */
#include "bench/bench.h"

#include <ravel/tokenizer.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *folder = "tests/golden/text/llama3", *script = "python/bench/tokenize_vs_hf.py";

typedef struct job {
    ravel_encoder *encoder;
    char *text;
    size_t bytes;
    int64_t tokens;
} job;

static void encode_all(void *user) {
    job *j = user;
    j->tokens = 0;
    for (size_t at = 0; at < j->bytes;) {
        const ravel_encoding *e;
        size_t end = at + 2000 < j->bytes ? at + 2000 : j->bytes;
        while (end < j->bytes && j->text[end] != '\n') end++;
        if (ravel_encoder_encode(j->encoder, j->text + at, end - at, 0, &e, NULL)) return;
        j->tokens += e->count;
        at = end;
    }
}

static char *read_text(size_t *bytes) {
    char *text = malloc(1 << 20);
    FILE *pipe = popen("cat docs/*.md src/*/*.c | head -c 1000000", "r");
    *bytes = pipe && text ? fread(text, 1, 1 << 20, pipe) : 0;
    if (pipe) (void)pclose(pipe);
    return text;
}

static void alone(void) {
    ravel_tokenizer *t = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    job j = {0};
    j.text = read_text(&j.bytes);
    if (j.bytes == 0 || ravel_tokenizer_open(folder, NULL, &t, &err) ||
        ravel_encoder_create(t, NULL, &j.encoder, &err)) {
        bench_note("text.tokenize: %s", err.message[0] ? err.message : "run the bench from the top of the tree");
    } else {
        double best = bench_best(5, encode_all, &j);
        bench_report("text.tokenize", (double)j.bytes / best / 1e6, "MB/s", HIGHER,
                     "%zu bytes of this repository to %lld tokens, 700 tokens in the vocabulary", j.bytes,
                     (long long)j.tokens);
    }
    ravel_encoder_free(j.encoder);
    ravel_tokenizer_free(t);
    free(j.text);
}

/* A line per tokenizer; the last has the smallest ratio. */
static void against_package(void) {
    const char *build = getenv("BUILD") ? getenv("BUILD") : "build";
    char command[1024], line[256], name[64], row[96];
    double ours, theirs, ratio = 0;
    (void)snprintf(
        command, sizeof command,
        "sh mk/text-venv.sh %s && RAVEL_LIBRARY=%s/libravel.so %s/text-venv/bin/python %s %s/tokenizers 2>&1", build,
        build, build, script, build);
    FILE *pipe = popen(command, "r");
    if (!pipe) return;
    while (fgets(line, sizeof line, pipe)) {
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%lf %lf %lf %63s", &ratio, &ours, &theirs, name) != 4) {
            bench_note("text.tokenize_vs_hf: %s", line);
            continue;
        }
        (void)snprintf(row, sizeof row, "text.vs_hf_%s", name);
        bench_report(row, ratio, "x", HIGHER, "%.2f M tokens/s of processor time, the tokenizers package %.2f M",
                     ours / 1e6, theirs / 1e6);
    }
    if (pclose(pipe) == 0 && ratio > 0)
        bench_report("text.tokenize_vs_hf", ratio, "x", HIGHER, "the least of these (%s); target 1.5", name);
}

BENCH(text) {
    alone();
    if (access(script, R_OK) == 0) against_package();
}
