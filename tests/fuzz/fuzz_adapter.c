/* The adapter_config.json of a stranger's PEFT folder, or of trainers that publish: what is accepted is printed and read again as the
 * same adapter, what is refused says why. Before a NUL: the list of --lora-targets. */
#include "train/model/hf/lora.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void must(int condition) {
    if (!condition) abort();
}

static void read_targets(const char *text, size_t bytes) {
    uint32_t targets = 0;
    ravel_error err = RAVEL_ERROR_INIT;
    char *list = calloc(bytes + 1, 1);
    must(list != NULL);
    memcpy(list, text, bytes);
    if (train_lora_targets(list, &targets, &err) == RAVEL_OK)
        must(targets && !(targets & ~train_lora_all()));
    else
        must(err.message[0] != '\0');
    free(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const char *text = (const char *)data, *end = memchr(data, '\0', bytes);
    train_lora lora, again;
    ravel_error err = RAVEL_ERROR_INIT;
    char *printed = NULL;
    size_t printed_bytes = 0;
    if (end) {
        read_targets(text, (size_t)(end - text));
        bytes -= (size_t)(end + 1 - text);
        text = end + 1;
    }
    if (train_adapter_parse(text, bytes, &lora, &err) != RAVEL_OK) {
        must(err.message[0] != '\0');
        return 0;
    }
    must(lora.rank >= 1 && lora.rank <= TRAIN_LORA_RANK && lora.alpha > 0 && lora.targets);
    must(train_adapter_print(&lora, NULL, &printed, &printed_bytes, NULL) == RAVEL_OK);
    must(train_adapter_parse(printed, printed_bytes, &again, NULL) == RAVEL_OK);
    must(again.rank == lora.rank && again.alpha == lora.alpha && again.rslora == lora.rslora &&
         again.targets == lora.targets);
    free(printed);
    return 0;
}
