/* Preloaded before the shim: what is to be removed stays, so that a journal can be read after a
 * process that ended by itself. */
__attribute__((visibility("default"))) int unlink(const char *path);

int unlink(const char *path)
{
    (void)path;
    return 0;
}
