"""The examples of docs/several-processes.md, by what reads them: their syntax, and their options."""

import importlib
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest

import conftest
import leak_report

PAGE = (conftest.ROOT / "docs" / "several-processes.md").read_text()
IN_PAGE = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
# As the page writes them, in whichever syntax.
CONFS = sorted(set(re.findall(r'ALLOC_CONF(?:=|\n +value: "| )([a-z_]+:[^\s`"]+)', PAGE)))


def example(language):
    """The only one in that language."""
    found, = (text for written, text in IN_PAGE if written == language)
    return found


def module(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return conftest.missing(f"this Python has no {name}")


def checked(*command, **kwargs):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True,
                          check=False, **kwargs)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("text", [text for language, text in IN_PAGE if language == "sh"])
def test_commands_are_a_shells(text):
    assert checked("sh", "-n", input=text).stderr == ""


@pytest.mark.parametrize("conf", CONFS)
def test_the_options_of_the_page_lead_to_a_report(run, program, tmp_path, conf):
    conf = re.sub(r"(?<=:)/(reports|var/lib/app)/", f"{tmp_path}/", conf.replace("%%", "%"))
    result = run(program("leaks"), conf=conf, cwd=tmp_path,
                 env={"RANK": 7, "JOB_COMPLETION_INDEX": 3})
    report, = tmp_path.glob("leaks.*")
    assert leak_report.parse(report.read_text()).bytes
    assert "warning" not in result.err


def test_the_page_has_options_in_each_syntax():
    assert len(CONFS) >= 5 and any("%%" in conf for conf in CONFS)
    assert {language for language, _ in IN_PAGE} == {"sh", "dockerfile", "yaml", "ini", "singularity"}


# --- containers -----------------------------------------------------------------------------------


def test_the_image_is_built_and_has_the_variables(tmp_path):
    """From nothing, instead of an image that would have to be fetched."""
    conftest.only_in_its_target()
    if not shutil.which("buildah"):
        conftest.missing("no buildah here")
    for name in ("libcachealloc.so", "app"):
        (tmp_path / name).write_text(name)
    (tmp_path / "Dockerfile").write_text(re.sub("^FROM .*", "FROM scratch", example("dockerfile")))
    buildah = ["buildah", "--root", tmp_path / "root", "--runroot", tmp_path / "run",
               "--storage-driver", "vfs"]
    image = checked(*buildah, "build", "--quiet", "--isolation", "chroot", tmp_path).stdout.strip()
    told = checked(*buildah, "inspect", "--type", "image", "--format",
                   "{{.OCIv1.Config.Env}} {{.OCIv1.Config.Cmd}}", image).stdout

    assert "LD_PRELOAD=/opt/cachealloc/libcachealloc.so" in told
    assert "ALLOC_CONF=leak_report:/reports/leaks.%h.%p" in told and "/opt/app/app" in told


def objects(value, kind, models):
    """Refuses keys that a kind of Kubernetes object has not, and what is no object where one is
    wanted."""
    list_of = re.fullmatch(r"list\[(\w+)\]", kind)
    map_of = re.fullmatch(r"dict\(str, (\w+)\)", kind)
    if list_of:
        assert isinstance(value, list), (kind, value)
        for one in value:
            objects(one, list_of[1], models)
    elif map_of:
        for one in value.values():  # an amount may be a number too
            objects(str(one) if isinstance(one, int) else one, map_of[1], models)
    elif kind == "object" or not hasattr(models, kind):
        wanted = {"str": str, "int": int, "bool": bool}.get(kind, object)
        assert isinstance(value, wanted), (kind, value)
    else:
        model = getattr(models, kind)
        names = {key: name for name, key in model.attribute_map.items()}
        assert set(value) <= set(names), (kind, set(value) - set(names))
        for key, one in value.items():
            objects(one, model.openapi_types[names[key]], models)
        # The model itself refuses to be without what it needs.
        model(**{names[key]: one for key, one in value.items()})


def test_the_job_is_one_that_kubernetes_knows():
    yaml = module("yaml")
    models = module("kubernetes.client.models")
    job = yaml.safe_load(example("yaml"))

    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    objects(job, "V1Job", models)


def test_the_job_mounts_what_it_names():
    yaml = module("yaml")
    pod = yaml.safe_load(example("yaml"))["spec"]["template"]["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    app, = pod["containers"]
    copier, = pod["initContainers"]

    for container in (app, copier):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    paths = {mount["name"]: mount["mountPath"] for mount in app["volumeMounts"]}
    variables = {variable["name"]: variable["value"] for variable in app["env"]}
    assert variables["LD_PRELOAD"] == f"{paths['cachealloc']}/libcachealloc.so"
    assert variables["ALLOC_CONF"].startswith(f"leak_report:{paths['reports']}/")
    assert copier["command"][-1] == f"{copier['volumeMounts'][0]['mountPath']}/"


def test_the_definition_of_an_apptainer_image_sets_the_variables():
    """Its parts are what Apptainer's manual names, and shell."""
    head, *parts = re.split(r"^%", example("singularity"), flags=re.MULTILINE)
    assert re.fullmatch(r"Bootstrap: docker\nFrom: \S+\n\n", head)
    parts = dict(part.split("\n", 1) for part in parts)
    assert set(parts) == {"files", "environment", "runscript"}
    assert all(len(line.split()) == 2 for line in parts["files"].strip().splitlines())

    shown = checked("sh", "-euc", parts["environment"] + "\nexec env", env={}).stdout.splitlines()

    assert "LD_PRELOAD=/opt/cachealloc/libcachealloc.so" in shown
    assert "ALLOC_CONF=leak_report:leaks.%r" in shown
    assert parts["files"].split()[1] == "/opt/cachealloc/libcachealloc.so"
    assert checked("sh", "-n", input=parts["runscript"]).stderr == ""


def test_the_service_is_one_that_systemd_knows(tmp_path):
    if not shutil.which("systemd-analyze"):
        conftest.missing("no systemd-analyze here")
    (tmp_path / "app.service").write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / "app.service.d").mkdir()
    drop_in = tmp_path / "app.service.d" / "cachealloc.conf"
    drop_in.write_text(example("ini"))

    def verify():
        return subprocess.run(["systemd-analyze", "--man=no", "verify", tmp_path / "app.service"],
                              text=True, capture_output=True, check=False).stderr

    assert verify() == ""
    assert not re.search(r"(?<!%)%(%%)*(?!%)", drop_in.read_text())
    drop_in.write_text(example("ini").replace("StateDirectory", "StateDirectry"))
    assert "StateDirectry" in verify()


# --- every process of a machine -------------------------------------------------------------------


@pytest.fixture
def everywhere(run, tmp_path, shim):
    """everywhere(command, preload) runs it where /etc/ld.so.preload names the library, or in the same
    /etc without that file. Nothing outside of the command sees that /etc."""
    if os.geteuid() != 0:
        conftest.missing("only root mounts")
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        conftest.missing("no namespace of mounts to be had here")
    with tempfile.TemporaryDirectory() as folder:  # which everybody may read
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        shutil.copy(shim, folder)
        for name in ("with", "without"):
            (folder / name).mkdir()
            for file in ("ld.so.cache", "passwd", "group", "nsswitch.conf"):
                if os.path.exists(f"/etc/{file}"):
                    shutil.copy(f"/etc/{file}", folder / name)
        (folder / "with" / "ld.so.preload").write_text(f"{folder}/{shim.name}\n")

        def start(command, preload=True, **kwargs):
            etc = folder / ("with" if preload else "without")
            return run(["unshare", "-m", "sh", "-ec", 'mount --bind "$0" /etc; exec "$@"', etc,
                        *command], preload=False, cwd=tmp_path, **kwargs)
        start.folder = folder
        yield start


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time must come first")
@pytest.mark.parametrize("command", [
    ["true"], ["sh", "-c", "echo said; echo warned >&2; exit 3"], ["/sbin/ldconfig", "-p"],
    ["env", "-i", "/bin/ls", "/"], [sys.executable, "-c", "import os, sys; os.fork(); sys.exit(4)"]],
    ids=["true", "shell", "static", "ls", "python"])
def test_programs_without_cuda_are_undisturbed(everywhere, command):
    """Bad options too: they are read at the first call of CUDA."""
    env = {"ALLOC_CONF": "no_such_key:1,help:true"}
    with_it, without = (everywhere(command, preload, env=env) for preload in (True, False))
    assert (with_it.rc, with_it.out, with_it.err) == (without.rc, without.out, without.err)


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time must come first")
def test_programs_with_the_rights_of_another_have_it_and_are_undisturbed(everywhere):
    """The loader gives it to them, unlike with LD_PRELOAD."""
    if os.statvfs(everywhere.folder).f_flag & os.ST_NOSUID:
        pytest.skip(f"no program in {everywhere.folder} is set-user-ID")
    grep = shutil.copy(shutil.which("grep"), everywhere.folder)
    os.chmod(grep, stat.S_ISUID | 0o755)
    command = ["setpriv", "--reuid=65534", "--clear-groups", grep, "-c", "libcachealloc",
               "/proc/self/maps"]
    env = {"ALLOC_CONF": "no_such_key:1,help:true"}

    with_it, without = (everywhere(command, preload, env=env) for preload in (True, False))

    assert (with_it.rc, with_it.err) == (0, "") and int(with_it.out) > 0
    assert (without.rc, without.out, without.err) == (1, "0\n", "")


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time must come first")
def test_programs_with_cuda_are_served(everywhere, program, tmp_path):
    result = everywhere([program("leaks")], env={"ALLOC_CONF": "leak_report:leaks.%e"})
    assert (result.rc, result.err) == (0, "")
    assert leak_report.parse((tmp_path / "leaks.leaks").read_text()).count == 7


@pytest.mark.skipif(conftest.SANITIZER is not None, reason="its run-time must come first")
def test_a_path_that_is_gone_costs_a_line(everywhere):
    (everywhere.folder / "with" / "ld.so.preload").write_text("/gone/libcachealloc.so\n")
    result = everywhere(["true"])
    assert result.rc == 0
    assert "object '/gone/libcachealloc.so' from /etc/ld.so.preload cannot be preloaded" in result.err
