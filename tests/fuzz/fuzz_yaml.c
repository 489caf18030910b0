/* A configuration in YAML: what is taken becomes JSON that our reader takes. */
#include "base/json.h"
#include "base/yaml.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *json = NULL;
    size_t bytes = 0;
    ravel__json *doc = NULL;
    if (ravel__yaml_to_json((const char *)data, size, &json, &bytes, NULL)) return 0;
    ravel_status status = ravel__json_parse(json, bytes, NULL, &doc, NULL);
    if (status == RAVEL_OK && ravel__json_root(doc)->kind != RAVEL__JSON_OBJECT) abort();
    ravel__json_free(doc);
    free(json);
    return 0;
}
