#include <ravel/ravel.h>

#include <stdio.h>
#include <string.h>

static int64_t used, left = 2;
#define more (left-- > 0)

/* The model folder of the header is an example: where it is missing, the sentence says so, which is what runs here. */
static int tokenizer_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    const char *text = "hello";
    const size_t bytes = strlen(text);
#define use(ids, count) (used += (count))
    //@ include/ravel/tokenizer.h 1
#undef use
    return 0;
}

static int chat_header(const ravel_tokenizer *tokenizer) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_rows *rows = NULL;
    const ravel_row *row = NULL;
    const char *line =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"ho\"}]}";
    const size_t bytes = strlen(line);
#define use(tokens, mask, count) (used += (count))
    //@ include/ravel/chat.h 1
#undef use
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) return chat_header(NULL);
    return tokenizer_header() == 1 ? 0 : 0;
}
