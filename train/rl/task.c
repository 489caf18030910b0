/* The tasks, one row each. A maker draws from a stream of random numbers that belongs to its question alone. */
#include "train/rl/task.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include "base/options.h"

#include <ravel/options.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct draw {
    uint64_t seed, stream, next;
} draw;

static uint32_t below(draw *d, uint32_t bound) {
    RAVEL_ASSERT(bound > 0);
    return (uint32_t)((train__random(d->seed, d->stream, d->next++) >> 32) * bound >> 32);
}

/* A question of its own kind, or "VERB WORD:", whose answer is the word, changed. */
struct train_task {
    const char *name, *doc;
    void (*make)(draw *d, int32_t level, train_question *q); /* NULL: the latter, */
    const char *verb, *letters;                              /* with a word of these letters */
    void (*change)(char *word);                              /* NULL: it stays as it is */
};

/* ---- makers --------------------------------------------------------------------------------------------- */

static void word(draw *d, int32_t length, const char *letters, char *out) {
    uint32_t count = (uint32_t)strlen(letters);
    RAVEL_ASSERT(length >= 0 && length < 32 && count > 0);
    for (int32_t i = 0; i < length; i++) out[i] = letters[below(d, count)];
    out[length] = '\0';
}

static const char letters[] = "abcdefghijklmnopqrstuvwxyz", digits[] = "0123456789";

/* A number of at most `level` digits, every length equally likely to be as long as it may. */
static int64_t number(draw *d, int32_t level) {
    int64_t value = 0;
    for (int32_t i = 0; i < level; i++) value = value * 10 + below(d, 10);
    return value;
}

static void make_arithmetic(draw *d, int32_t level, train_question *q) {
    int64_t a = number(d, level), b = number(d, level);
    int minus = below(d, 2) == 1 && a >= b;
    (void)snprintf(q->prompt, sizeof q->prompt, "%lld%c%lld=", (long long)a, minus ? '-' : '+', (long long)b);
    (void)snprintf(q->answer, sizeof q->answer, "%lld", (long long)(minus ? a - b : a + b));
}

static int by_byte(const void *a, const void *b) {
    return *(const unsigned char *)a - *(const unsigned char *)b;
}

static void sort_word(char *word) {
    qsort(word, strlen(word), 1, by_byte);
}

static void reverse_word(char *word) {
    for (size_t i = 0, n = strlen(word); i < n / 2; i++) {
        char c = word[i];
        word[i] = word[n - 1 - i];
        word[n - 1 - i] = c;
    }
}

static void raise_word(char *word) {
    for (; *word; word++) *word = (char)toupper((unsigned char)*word);
}

static void make_word(const train_task *task, draw *d, int32_t level, train_question *q) {
    char text[32];
    word(d, level + 1, task->letters, text);
    (void)snprintf(q->prompt, sizeof q->prompt, "%s %s:", task->verb, text);
    if (task->change) task->change(text);
    (void)snprintf(q->answer, sizeof q->answer, "%s", text);
}

static void make_count(draw *d, int32_t level, train_question *q) {
    char text[32];
    word(d, level + 2, "abc", text);
    char letter = "abc"[below(d, 3)];
    int count = 0;
    for (const char *c = text; *c; c++) count += *c == letter;
    (void)snprintf(q->prompt, sizeof q->prompt, "count %c in %s:", letter, text);
    (void)snprintf(q->answer, sizeof q->answer, "%d", count);
}

static const train_task tasks[] = {
    {.name = "arithmetic", .doc = "sums and differences of whole numbers", .make = make_arithmetic},
    {"sort", "the digits of a number in order", NULL, "sort", digits, sort_word},
    {"reverse", "a word backwards", NULL, "rev", letters, reverse_word},
    {"copy", "a word again", NULL, "copy", letters, NULL},
    {"upper", "a word in capitals", NULL, "up", letters, raise_word},
    {.name = "count", .doc = "how often a letter occurs", .make = make_count},
};
enum { TASKS = sizeof tasks / sizeof *tasks };

/* ---- public functions ------------------------------------------------------------------------------------ */

const char *train_task_name(int32_t index) {
    return index >= 0 && index < TASKS ? tasks[index].name : NULL;
}

const char *train_task_doc(int32_t index) {
    return index >= 0 && index < TASKS ? tasks[index].doc : NULL;
}

ravel_status train_task_find(const char *name, const train_task **task, ravel_error *err) {
    const char *names[TASKS];
    char list[256] = "";
    for (int i = 0; i < TASKS; i++) {
        if (strcmp(tasks[i].name, name) == 0) {
            *task = &tasks[i];
            return RAVEL_OK;
        }
        names[i] = tasks[i].name;
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = ravel__suggest(name, names, TASKS);
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "there is no task \"%.40s\"%s%s%s tasks are %s", name,
                           near ? "; did you mean \"" : "; the", near ? near : "", near ? "\"? The" : "", list);
}

void train_task_make(const train_task *task, uint64_t seed, int64_t index, int32_t level, train_question *question) {
    RAVEL_ASSERT(task >= tasks && task < tasks + TASKS);
    draw d = {seed, (uint64_t)index ^ (uint64_t)(task - tasks) << 56, 0};
    level = level < 1 ? 1 : level > 12 ? 12 : level;
    if (task->make)
        task->make(&d, level, question);
    else
        make_word(task, &d, level, question);
}

double train_task_score(const train_question *question, const char *response, size_t bytes, int ended, double partial) {
    size_t want = strlen(question->answer), right = 0, longer = bytes > want ? bytes : want;
    RAVEL_ASSERT(want <= longer && partial >= 0 && partial <= 1);
    for (size_t i = 0; i < bytes && i < want; i++) right += response[i] == question->answer[i];
    if (ended && bytes == want && right == want) return 1;
    /* The end counts as a position, so that all letters right without it is still less than the answer. */
    return partial * (double)right / (double)(longer + 1);
}

int64_t train_task_tokens(const train_question *question, int answer, int32_t *tokens, int64_t *prompt_tokens) {
    int64_t n = 0;
    tokens[n++] = TRAIN_TOKEN_BOS;
    for (const char *c = question->prompt; *c; c++) tokens[n++] = (unsigned char)*c;
    *prompt_tokens = n;
    if (!answer) return n;
    for (const char *c = question->answer; *c; c++) tokens[n++] = (unsigned char)*c;
    tokens[n++] = TRAIN_TOKEN_EOS;
    RAVEL_ASSERT(n <= TRAIN_TASK_TOKENS && *prompt_tokens < n);
    return n;
}
