#include "registry/report/formats.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

const ca_format_t ca_formats[CA_FORMATS] = {
    [CA_FORMAT_TEXT] = {"text", "", ca_format_text},
    [CA_FORMAT_JSON] = {"json", ".json", ca_format_json},
    [CA_FORMAT_PPROF] = {"pprof", ".pprof", ca_format_pprof},
    [CA_FORMAT_FOLDED] = {"folded", ".folded", ca_format_folded},
    [CA_FORMAT_PYTORCH] = {"pytorch", ".pickle", ca_format_pytorch},
};

const ca_format_t *ca_format_of_path(const char *path)
{
    size_t length = strlen(path);
    for (int i = 0; i < CA_FORMATS; i++) {
        size_t bytes = strlen(ca_formats[i].ending);
        bool fits = bytes != 0 && length > bytes && path[length - bytes - 1] != '/';
        if (fits && strcmp(path + length - bytes, ca_formats[i].ending) == 0)
            return &ca_formats[i];
    }
    return NULL;
}
