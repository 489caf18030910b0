/* Chat formats by name, for folders without a chat template: a template of our own per row, which writes what the
 * family's own template writes for conversations without tools (tests/golden/chat has their texts). */
#include "text/chat.h"

#include "base/system/file.h"

#include <string.h>
#include <sys/stat.h>

#define EACH      "{% for m in messages %}"
#define END       "{% endfor %}"
#define ASK(text) "{% if add_generation_prompt %}{{ '" text "' }}{% endif %}"

/* ---- ChatML: <|im_start|>role, a line end, the content, <|im_end|> ----------------------------------------- */

#define IM_DEFAULT(text) \
    "{% if loop.first and m.role != 'system' %}{{ '<|im_start|>system\\n" text "<|im_end|>\\n' }}{% endif %}"
#define IM_TURN        "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}"
#define IM_ASK         ASK("<|im_start|>assistant\\n")
#define CHATML(before) EACH before IM_TURN END IM_ASK

/* Thoughts of answers before the last question go; after it they are written in a fixed form. */
#define QWEN3                                                                                                  \
    "{% set q = namespace(at=messages|length - 1, found=false) %}"                                             \
    "{% for m in messages[::-1] %}"                                                                            \
    "{% if not q.found and m.role == 'user' and not (m.content.startswith('<tool_response>')"                  \
    " and m.content.endswith('</tool_response>')) %}"                                                          \
    "{% set q.found = true %}{% set q.at = loop.revindex0 %}{% endif %}{% endfor %}" EACH                      \
    "{% if m.role != 'assistant' %}" IM_TURN "{% else %}"                                                      \
    "{% set text = m.content %}{% set thought = m.reasoning_content %}"                                        \
    "{% if thought is not string %}{% set thought = '' %}"                                                     \
    "{% if '</think>' in text %}"                                                                              \
    "{% set thought = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"           \
    "{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}{% endif %}"                          \
    "{{ '<|im_start|>assistant\\n' }}"                                                                         \
    "{% if loop.index0 > q.at and (loop.last or thought) %}"                                                   \
    "{{ '<think>\\n' ~ thought.strip('\\n') ~ '\\n</think>\\n\\n' ~ text.lstrip('\\n') }}{% else %}{{ text }}" \
    "{% endif %}{{ '<|im_end|>\\n' }}{% endif %}" END IM_ASK

/* ---- Llama 3: a header with the role, the content without white space around it, <|eot_id|> ---------------- */

#define HEADER(role)  "'<|start_header_id|>' ~ " role " ~ '<|end_header_id|>\\n\\n'"
#define LLAMA_TURN    "{{ " HEADER("m.role") " ~ m.content|trim ~ '<|eot_id|>' }}"
#define LLAMA_ASK     "{% if add_generation_prompt %}{{ " HEADER("'assistant'") " }}{% endif %}"
#define LLAMA31_FRONT "Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n"
#define LLAMA31                                                                                                        \
    "{{ bos_token }}{% set s = messages and messages[0].role == 'system' %}"                                           \
    "{{ " HEADER("'system'") " ~ '" LLAMA31_FRONT "' ~ (messages[0].content|trim if s else '') ~ '<|eot_id|>' }}" EACH \
                             "{% if not (loop.first and s) %}" LLAMA_TURN "{% endif %}" END LLAMA_ASK

/* ---- DeepSeek: <｜User｜>, <｜Assistant｜>, <｜end▁of▁sentence｜> ------------------------------------------- */

/* clang-format off */ /* versions differ on the width of these bars */
#define EOS "<｜end▁of▁sentence｜>"
#define ALL_SYSTEMS \
    "{{ bos_token }}{{ messages|selectattr('role', 'equalto', 'system')|map(attribute='content')|join('\\n\\n') }}"
#define R1(ask)                                                                                 \
    "{{ bos_token }}{% for m in messages if m.role == 'system' %}"                              \
    "{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}" EACH                             \
    "{% if m.role == 'user' %}{{ '<｜User｜>' ~ m.content }}{% elif m.role == 'assistant' %}" \
    "{{ '<｜Assistant｜>' ~ m.content.split('</think>')[-1] ~ '" EOS "' }}{% endif %}" END      \
    ASK(ask)
#define V3(answer)                                                                                              \
    ALL_SYSTEMS                                                                                                 \
    "{% set last = namespace(user=false) %}" EACH                                                               \
    "{% if m.role == 'user' %}{% set last.user = true %}{{ '<｜User｜>' ~ m.content ~ '<｜Assistant｜>' }}" \
    "{% elif m.role == 'assistant' %}{% set last.user = false %}{{ " answer " ~ '" EOS "' }}{% endif %}" END    \
    "{% if add_generation_prompt and not last.user %}{{ '<｜Assistant｜>' }}{% endif %}"
#define V31                                                                                                     \
    ALL_SYSTEMS                                                                                                 \
    "{% set last = namespace(user=false) %}" EACH                                                               \
    "{% if m.role == 'user' %}{% set last.user = true %}{{ '<｜User｜>' ~ m.content }}"                       \
    "{% elif m.role == 'assistant' %}{{ '<｜Assistant｜></think>' if last.user }}{% set last.user = false %}" \
    "{{ m.content.split('</think>', 1)[-1] ~ '" EOS "' }}{% endif %}" END                                       \
    "{% if add_generation_prompt and last.user %}{{ '<｜Assistant｜></think>' }}{% endif %}"
/* clang-format on */

/* ---- Mistral: [INST] question [/INST] answer, eos ------------------------------------------------------- */

#define TURNS                                                                                                        \
    "{% set n = namespace(turn=0) %}" EACH "{% if m.role != 'system' and (m.role == 'user') != (n.turn % 2 == 0) %}" \
    "{{ raise_exception('user and assistant must alternate, the user first') }}{% endif %}"                          \
    "{% if m.role != 'system' %}{% set n.turn = n.turn + 1 %}{% endif %}" END "{{ bos_token }}"
#define NO_SYSTEM(what) "{{ raise_exception('there are no system messages" what "') }}"

static const struct {
    const char *name, *text;
} formats[] = {
    {"chatml", CHATML("")},
    {"smollm2", CHATML(IM_DEFAULT("You are a helpful AI assistant named SmolLM, trained by Hugging Face"))},
    {"qwen2", CHATML(IM_DEFAULT("You are a helpful assistant."))},
    {"qwen2.5", CHATML(IM_DEFAULT("You are Qwen, created by Alibaba Cloud. You are a helpful assistant."))},
    {"qwen3", QWEN3},
    {"llama3", "{{ bos_token }}" EACH LLAMA_TURN END LLAMA_ASK},
    {"llama3.1", LLAMA31},
    {"deepseek-r1", R1("<｜Assistant｜>")},
    {"deepseek-r1-think", R1("<｜Assistant｜><think>\\n")},
    {"deepseek-v3", V3("m.content")},
    {"deepseek-r1-0528", V3("m.content.split('</think>')[-1]")},
    {"deepseek-v3.1", V31},
    {"mistral-v2",
     TURNS EACH "{% if m.role == 'user' %}{{ '[INST] ' ~ m.content ~ ' [/INST]' }}{% elif m.role == 'assistant' %}"
                "{{ m.content ~ eos_token }}{% else %}" NO_SYSTEM("") "{% endif %}" END},
    {"mistral-nemo",
     TURNS EACH "{% if m.role == 'user' %}{{ '[INST]' ~ (messages[0].content ~ '\\n\\n' if loop.last and "
                "messages[0].role == 'system' else '') ~ m.content ~ '[/INST]' }}{% elif m.role == 'assistant' %}"
                "{{ m.content ~ eos_token }}{% elif not loop.first %}" NO_SYSTEM(" but the first") "{% endif %}" END},
};
enum { FORMATS = sizeof formats / sizeof *formats };

const char *ravel_chat_format_at(int32_t index) {
    return index >= 0 && index < FORMATS ? formats[index].name : NULL;
}

static ravel_status no_such_format(const char *name, ravel_error *err) {
    char list[512] = "";
    for (int i = 0; i < FORMATS; i++) {
        size_t used = strlen(list);
        strncat(list + used, i ? ", " : "", sizeof list - used - 1);
        strncat(list, formats[i].name, sizeof list - strlen(list) - 1);
    }
    return ravel_error_set(
        err, RAVEL_E_ARGUMENT,
        "there is no chat format \"%.40s\", and no file of this name; give a file of a Jinja template, or "
        "one of %s",
        name, list);
}

ravel_status ravel_chat_format_open(const char *name, const ravel_allocator *allocator, ravel_chat_format **format,
                                    ravel_error *err) {
    struct stat info;
    ravel__map map;
    for (int i = 0; i < FORMATS; i++)
        if (strcmp(formats[i].name, name) == 0)
            return ravel__chat_format_create(name, formats[i].text, strlen(formats[i].text), NULL, 0, allocator, format,
                                             err);
    if (stat(name, &info) != 0) return no_such_format(name, err);
    ravel_status status = ravel__map_open(name, &map, err);
    if (status) return status;
    status = ravel__chat_format_create(name, map.data ? map.data : "", map.bytes, NULL, 0, allocator, format, err);
    if (status) ravel_error_prefix(err, "%s", name);
    ravel__map_close(&map);
    return status;
}
