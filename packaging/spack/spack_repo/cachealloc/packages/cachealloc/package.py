"""Builds the source tree that this recipe lies in, as it is committed there."""

import pathlib

from spack.package import *

try:
    from spack_repo.builtin.build_systems.makefile import MakefilePackage
except ImportError:
    pass  # before Spack 1.0 it is in spack.package


class Cachealloc(MakefilePackage):
    """A caching and accounting allocator for CUDA programs: LD_PRELOAD puts it in front of the CUDA
    runtime and driver, without a rebuild."""

    git = pathlib.Path(__file__).resolve().parents[6].as_uri()

    license("MIT")

    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("cuda@11.7:", type="build")  # its headers alone
    depends_on("python@3.6:", type="run")

    conflicts("platform=darwin", msg="cachealloc needs glibc")
    requires("target=x86_64:", "target=aarch64:", policy="one_of",
             msg="cachealloc knows x86_64 and aarch64")

    @property
    def headers_of_cuda(self):
        return f"CUDA_INC={self.spec['cuda'].prefix.include}"

    @property
    def build_targets(self):
        return ["lib", self.headers_of_cuda]

    @property
    def install_targets(self):
        # Without D3, which would be fetched: `cachealloc report` says what brings it.
        return ["install", f"PREFIX={self.prefix}", "D3=", self.headers_of_cuda]

    def setup_run_environment(self, env):
        env.prepend_path("PYTHONPATH", self.prefix.lib.cachealloc)
        env.set("CACHEALLOC_LIBRARY", self.prefix.lib.join("libcachealloc.so"))
