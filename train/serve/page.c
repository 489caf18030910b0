/* /metrics: figures for a Prometheus scraper. */
#include "train/serve/internal.h"

#include "train/kernels/host.h"

static void put(train_out *o, const char *name, const char *kind, const char *help, double value) {
    train_out_print(o, "# HELP ravel_serve_%s %s\n# TYPE ravel_serve_%s %s\nravel_serve_%s %.10g\n", name, help, name,
                    kind, name, value);
}

/* Tokens per second since the page before, which is at least a second ago. */
static double rate(train_serve *s, int64_t tokens) {
    double now = train__now();
    if (s->page_at > 0 && now - s->page_at < 1) return s->page_rate;
    if (s->page_at > 0) s->page_rate = (double)(tokens - s->page_tokens) / (now - s->page_at);
    s->page_at = now;
    s->page_tokens = tokens;
    return s->page_rate;
}

void train__serve_page(train_serve *s, train_out *o) {
    train_engine_stats e = train_engine_counts(s->engine);
    const train__serve_counts *c = &s->counts;
    int32_t open, busy;
    ravel__http_server_count(s->http, &open, &busy);
    train_out_puts(
        o, "# HELP ravel_serve_requests_total answers by status code\n# TYPE ravel_serve_requests_total counter\n");
    for (int i = 0; i < TRAIN__CODES && c->codes[i]; i++)
        train_out_print(o, "ravel_serve_requests_total{code=\"%d\"} %lld\n", c->codes[i], (long long)c->answers[i]);
    const struct {
        const char *name, *kind, *help;
        double value;
    } rows[] = {
        {"clients_gone_total", "counter", "clients that went before their answer was complete", (double)c->gone},
        {"completions_total", "counter", "requests for completions that were answered", (double)c->ended},
        {"completion_seconds_total", "counter", "seconds from request to answer, summed", c->request_seconds},
        {"streams_total", "counter", "streamed answers whose first token came", (double)c->streams},
        {"first_token_seconds_total", "counter", "seconds from request to first token, summed", c->first_seconds},
        {"connections", "gauge", "open connections", (double)open},
        {"queue", "gauge", "prompts that wait for slots", (double)e.waiting},
        {"running", "gauge", "answers in slots: the batch size", (double)e.running},
        {"slots", "gauge", "answers that can run at once", (double)s->options.slots},
        {"steps_total", "counter", "steps of the generator", (double)e.generator.steps},
        {"slot_steps_total", "counter", "slots in use, summed over steps", (double)e.generator.slot_steps},
        {"prompt_tokens_total", "counter", "prompt tokens run through the network", (double)e.generator.prompt_tokens},
        {"kept_tokens_total", "counter", "prompt tokens found in kept pages instead", (double)e.generator.kept_tokens},
        {"tokens_total", "counter", "tokens drawn", (double)e.generator.tokens},
        {"tokens_per_second", "gauge", "tokens drawn since the scrape before", rate(s, e.generator.tokens)},
        {"version", "gauge", "version of the weights", (double)e.pulled.version},
        {"pulls_total", "counter", "versions pulled", (double)e.pulled.commits},
        {"pull_pause_seconds_total", "counter", "seconds without generation because of pulls", e.pulled.pause_sum},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        put(o, rows[i].name, rows[i].kind, rows[i].help, rows[i].value);
}
