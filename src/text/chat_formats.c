/* The table of chat formats. A digest is listed where the row was compared with that template by transformers, on the
 * conversations of tests/golden/chat. */
#include "text/chat.h"

#include "base/assert.h"
#include "base/hash.h"

#include <inttypes.h>
#include <string.h>

#define IM_START(role) "<|im_start|>" role "\n"
/* clang-format off */
#define CHATML_BEFORE  {IM_START("system"), IM_START("user"), IM_START("assistant")}
#define CHATML_AFTER   {"<|im_end|>", "<|im_end|>", "<|im_end|>"}
#define HEADER(role)   "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define LLAMA3_BEFORE  {HEADER("system"), HEADER("user"), HEADER("assistant")}
#define LLAMA3_AFTER   {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"}
#define DIGESTS(...)   (const uint64_t[]){__VA_ARGS__, 0}
/* clang-format on */

static const ravel_chat_format formats[] = {
    {.name = "chatml",
     .before = CHATML_BEFORE,
     .after = CHATML_AFTER,
     .tail = "\n",
     .answer = IM_START("assistant"),
     .digests = DIGESTS(0x6cc6a9f21b834185, 0xb253629eb03e37dc, 0xea32ce80857052b6)},
    {.name = "smollm2",
     .system_default = "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
     .before = CHATML_BEFORE,
     .after = CHATML_AFTER,
     .tail = "\n",
     .answer = IM_START("assistant"),
     .digests = DIGESTS(0x1068428127f2c372)},
    {.name = "qwen2",
     .system_default = "You are a helpful assistant.",
     .before = CHATML_BEFORE,
     .after = CHATML_AFTER,
     .tail = "\n",
     .answer = IM_START("assistant"),
     .digests = DIGESTS(0x50f979ef0f3d8432)},
    {.name = "qwen2.5",
     .system_default = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
     .before = CHATML_BEFORE,
     .after = CHATML_AFTER,
     .tail = "\n",
     .answer = IM_START("assistant"),
     .digests = DIGESTS(0xe373f9b3924f6f9c)},
    {.name = "qwen3",
     .think_rule = RAVEL__THINK_QWEN3,
     .before = CHATML_BEFORE,
     .after = CHATML_AFTER,
     .tail = "\n",
     .answer = IM_START("assistant"),
     .digests = DIGESTS(0xcf4cef986a69765e)},
    {.name = "llama3",
     .flags = RAVEL__CHAT_BOS | RAVEL__CHAT_TRIM,
     .before = LLAMA3_BEFORE,
     .after = LLAMA3_AFTER,
     .tail = "",
     .answer = HEADER("assistant"),
     .digests = DIGESTS(0x70e9eeefd1e78dcc)},
    {.name = "llama3.1",
     .flags = RAVEL__CHAT_BOS | RAVEL__CHAT_TRIM,
     .system_rule = RAVEL__SYSTEM_PREAMBLE,
     .system_default = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
     .before = LLAMA3_BEFORE,
     .after = LLAMA3_AFTER,
     .tail = "",
     .answer = HEADER("assistant"),
     .digests = DIGESTS(0x991a348db1152dda)},
    {.name = "deepseek-r1",
     .flags = RAVEL__CHAT_BOS,
     .system_rule = RAVEL__SYSTEM_FRONT,
     .think_rule = RAVEL__THINK_DROP,
     .before = {"", "<｜User｜>", "<｜Assistant｜>"},
     .after = {"", "", "<｜end▁of▁sentence｜>"},
     .tail = "",
     .answer = "<｜Assistant｜>",
     .digests = DIGESTS(0xf0bd2adb04a1e23a)},
    {.name = "deepseek-r1-think",
     .flags = RAVEL__CHAT_BOS,
     .system_rule = RAVEL__SYSTEM_FRONT,
     .think_rule = RAVEL__THINK_DROP,
     .before = {"", "<｜User｜>", "<｜Assistant｜>"},
     .after = {"", "", "<｜end▁of▁sentence｜>"},
     .tail = "",
     .answer = "<｜Assistant｜><think>\n",
     .digests = DIGESTS(0xaf40ced2e9d983d9)},
    {.name = "deepseek-v3",
     .flags = RAVEL__CHAT_BOS | RAVEL__CHAT_OPENED,
     .system_rule = RAVEL__SYSTEM_JOINED,
     .before = {"", "<｜User｜>", ""},
     .after = {"", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .tail = "",
     .answer = "<｜Assistant｜>",
     .digests = DIGESTS(0x22149752f8661c43, 0x8a7d29bc99ac0693)},
    {.name = "deepseek-r1-0528",
     .flags = RAVEL__CHAT_BOS | RAVEL__CHAT_OPENED,
     .system_rule = RAVEL__SYSTEM_JOINED,
     .think_rule = RAVEL__THINK_DROP,
     .before = {"", "<｜User｜>", ""},
     .after = {"", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .tail = "",
     .answer = "<｜Assistant｜>",
     .digests = DIGESTS(0x1c21aece1d7430f1, 0xd0629527be138187, 0xe29ed3bb0a1aaa5e, 0x91708bc31369e496)},
    {.name = "deepseek-v3.1",
     .flags = RAVEL__CHAT_BOS | RAVEL__CHAT_AFTER_USER,
     .system_rule = RAVEL__SYSTEM_JOINED,
     .think_rule = RAVEL__THINK_DROP_FIRST,
     .before = {"", "<｜User｜>", "<｜Assistant｜></think>"},
     .after = {"", "", "<｜end▁of▁sentence｜>"},
     .tail = "",
     .answer = "<｜Assistant｜></think>",
     .digests = DIGESTS(0xb5a2b7fa20d1f4c2)},
    {.name = "mistral-v2",
     .flags = RAVEL__CHAT_BOS | RAVEL__CHAT_ALTERNATE,
     .system_rule = RAVEL__SYSTEM_NONE,
     .before = {"", "[INST] ", ""},
     .after = {"", " [/INST]", "\1"},
     .tail = "",
     .answer = "",
     .digests = DIGESTS(0x1ebdf8007e427591)},
    {.name = "mistral-nemo",
     .flags = RAVEL__CHAT_BOS | RAVEL__CHAT_ALTERNATE,
     .system_rule = RAVEL__SYSTEM_LAST_USER,
     .before = {"", "[INST]", ""},
     .after = {"", "[/INST]", "\1"},
     .tail = "",
     .answer = "",
     .digests = DIGESTS(0x7ca8071e1ee93044)},
};
enum { FORMATS = sizeof formats / sizeof *formats };

const ravel_chat_format *ravel_chat_format_at(int32_t index) {
    return index >= 0 && index < FORMATS ? &formats[index] : NULL;
}

const ravel_chat_format *ravel_chat_format_named(const char *name) {
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0) return &formats[i];
    return NULL;
}

const char *ravel_chat_format_name(const ravel_chat_format *format) {
    return format->name;
}

uint64_t ravel_chat_template_digest(const char *text, size_t bytes) {
    ravel__hash hash = ravel__hash_begin(0x63686174);                              /* "chat" */
    while (bytes && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r')) bytes--; /* files may end with a line end */
    ravel__hash_bytes(&hash, text, bytes);
    return ravel__hash_end(hash);
}

static int lists(const ravel_chat_format *format, uint64_t digest) {
    RAVEL_ASSERT(format->digests);
    for (const uint64_t *d = format->digests; *d; d++)
        if (*d == digest) return 1;
    return 0;
}

ravel_status ravel_chat_format_of(const ravel_tokenizer *tokenizer, const ravel_chat_format **format,
                                  ravel_error *err) {
    const char *text = ravel_tokenizer_chat_template(tokenizer);
    if (!text)
        return ravel_error_set(
            err, RAVEL_E_UNSUPPORTED,
            "the model folder has no chat template (\"chat_template\" in tokenizer_config.json, or "
            "chat_template.jinja), so conversations cannot be written; name a format, or " RAVEL__BRIDGE);
    uint64_t digest = ravel_chat_template_digest(text, strlen(text));
    for (int i = 0; i < FORMATS; i++)
        if (lists(&formats[i], digest)) {
            *format = &formats[i];
            return RAVEL_OK;
        }
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                           "the model folder's chat template (digest %016" PRIx64
                           ") is none of those that are written without Jinja; " RAVEL__BRIDGE,
                           digest);
}
