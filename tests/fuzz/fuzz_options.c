/* ALLOC_CONF: any text is read without a crash, every value is in its range, what is printed is
 * read back as the same, and an item that is wrong changes no other. */
#include "tests/fuzz/fuzz.h"

#include "config/options.h"

#define TEXT_MOST 4096
#define PRINTED_MOST (64 << 10)

static unsigned messages, renamed;

static void complain(void *arg, const char *message)
{
    (void)arg;
    messages++;
    /* At the end: a key that is refused may have the same words, and is quoted. */
    static const char *const ends[] = {"; the old name still works", "; its value is ignored"};
    size_t length = strlen(message);
    CLAIM(length < 768);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        renamed +=
            length > strlen(ends[i]) && strcmp(message + length - strlen(ends[i]), ends[i]) == 0;
    for (const char *at = message; *at; at++)
        CLAIM((unsigned char)*at >= 0x20 && *at != 0x7f);
}

static void in_range_size(size_t value, size_t least, size_t most)
{
    CLAIM(value >= least && value <= most);
}

static void in_range_share(ca_share_t value, size_t least, size_t most)
{
    CLAIM(value.part <= value.of && (value.part == 0) == (value.of == 0));
    CLAIM(value.of ? value.bytes == 0 : value.bytes >= least && value.bytes <= most);
}

static size_t choices_in(const char *choices)
{
    size_t count = 1;
    for (; *choices; choices++)
        count += *choices == '|';
    return count;
}

static void in_range_string(const char *value)
{
    CLAIM(memchr(value, '\0', CA_STRING_MAX));
}

static void in_range_list(const ca_size_list_t *list, size_t least, size_t most)
{
    CLAIM(list->count <= CA_LIST_MAX);
    for (size_t i = 0; i < list->count; i++)
        in_range_size(list->bytes[i], least, most);
}

/* What a DURATION may also be, and an ENUM's and a SET's bounds, are in `choices`. */
#define RANGE_SIZE(value, least, most, choices) in_range_size(value, least, most);
#define RANGE_SHARE(value, least, most, choices) in_range_share(value, least, most);
#define RANGE_BOOL(value, least, most, choices) CLAIM(value == false || value == true);
#define RANGE_UINT(value, least, most, choices) in_range_size(value, least, most);
#define RANGE_DURATION(value, least, most, choices)                                                \
    if (!(*choices && value == UINT64_MAX))                                                        \
        in_range_size(value, least, most);
#define RANGE_ENUM(value, least, most, choices)                                                    \
    CLAIM(value >= 0 && (size_t)value < choices_in(choices));
#define RANGE_SET(value, least, most, choices) CLAIM(value >> choices_in(choices) == 0);
#define RANGE_CHOICE(value, least, most, choices) CLAIM(value.which < choices_in(choices));
#define RANGE_STRING(value, least, most, choices) in_range_string(value);
#define RANGE_PATH(value, least, most, choices) in_range_string(value);
#define RANGE_LIST(value, least, most, choices) in_range_list(&value, least, most);
#define RANGE_SIGNAL(value, least, most, choices) CLAIM(value >= 0 && value <= 64);

static void check_ranges(const ca_options_t *options)
{
#define CA_OPTION(name, level, type, text, least, most, choices, ...)                              \
    RANGE_##type(options->name, (size_t)(least), (size_t)(most), choices)
#include "config/options.def"
#undef CA_OPTION
}

static const char *printed(const ca_options_t *options, char *buffer, size_t bytes)
{
    int length = ca_options_print(options, buffer, bytes);
    CLAIM(length >= 0 && (size_t)length < bytes && strlen(buffer) == (size_t)length);
    return buffer;
}

/* Whether both print alike. What is the same in every byte does. */
static bool alike(const ca_options_t *options, const char *first, const ca_options_t *again)
{
    static char second[PRINTED_MOST];
    return memcmp(options, again, sizeof *options) == 0 || /* NOLINT: else they are printed */
           strcmp(printed(again, second, sizeof second), first) == 0;
}

static void ignore_line(void *arg, const char *text)
{
    (void)arg;
    (void)text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char wrong[] = "x_runtime_hooks:maybe,";
    static char text[TEXT_MOST + sizeof wrong], first[PRINTED_MOST];
    static ca_options_t defaults, options, again;
    static bool began;
    if (size > TEXT_MOST)
        return 0;
    if (!began) /* takes as long as all that follows, and knows nothing of the input */
        ca_options_default(&defaults);
    began = true;
    memcpy(text, data, size);
    text[size] = '\0';

    messages = renamed = 0;
    options = defaults;
    int refused = ca_options_parse(&options, "ALLOC_CONF", text, complain, NULL);
    CLAIM(refused >= 0 && messages - renamed == (refused > 16 ? 17u : (unsigned)refused));
    check_ranges(&options);
    if (size % 64 == 0) /* takes long, and few values change it */
        ca_options_help(&options, ignore_line, NULL);

    again = defaults;
    CLAIM(ca_options_parse(&again, "ALLOC_CONF", printed(&options, first, sizeof first), complain,
                           NULL) == 0);
    CLAIM(alike(&options, first, &again));

    memmove(text + sizeof wrong - 1, text, strlen(text) + 1);
    memcpy(text, wrong, sizeof wrong - 1);
    again = defaults;
    CLAIM(ca_options_parse(&again, "ALLOC_CONF", text, NULL, NULL) == refused + 1);
    CLAIM(alike(&options, first, &again));
    return 0;
}
