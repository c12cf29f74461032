#!/usr/bin/env python3
"""`clan run` sets what it says, becomes the command, and has a sentence for everything that goes
wrong.

    run_test.py CLAN

The program is copied into a tree of its own, beside a library that has the right name and does
nothing.
"""

import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = "libclan-preload.so"
CANNOT_RUN = "this kernel cannot run programs of this kind\n"


def any_library():
    """A shared library of this machine that does no harm when it is preloaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split()[-1]
        if "/libm.so" in path or "/libm-" in path:
            return path
    raise RuntimeError("python3 has no libm mapped")


class Tree:
    def __init__(self, clan, top, libraries=None):
        self.top, self.built = Path(top).resolve(), clan
        (self.top / "bin").mkdir()
        (self.top / "lib").mkdir()
        self.clan = shutil.copy(clan, self.top / "bin")
        self.library = self.top / "lib" / LIBRARY
        shutil.copy(any_library(), self.library)
        self.libraries = libraries or Path(clan).resolve().parent.parent / "lib"

    def run(self, *arguments, env=None, **more):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("CLAN_") and name != "LD_PRELOAD"}
        environment["LD_LIBRARY_PATH"] = str(self.libraries)  # for libclan.so
        environment.update(env or {})
        return subprocess.run([self.clan, "run", *map(str, arguments)], capture_output=True,
                              text=True, timeout=60, stdin=subprocess.DEVNULL, env=environment,
                              **more)

    def variables(self, *arguments, env=None):
        done = self.run(*arguments, "env", env=env)
        assert done.returncode == 0 and done.stderr == "", done
        return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def check_environment(tree):
    library = str(tree.library)
    plain = tree.variables()
    assert plain["LD_PRELOAD"] == library, plain
    assert not [name for name in plain if name.startswith("CLAN_")], plain

    other = any_library()
    kept = tree.variables(env={"LD_PRELOAD": other})
    assert kept["LD_PRELOAD"] == f"{other}:{library}", kept
    again = tree.variables(env={"LD_PRELOAD": f"{other} {library}:{other}"})
    assert again["LD_PRELOAD"] == f"{other}:{other}:{library}", again
    nested = tree.variables(tree.clan, "run")
    assert nested["LD_PRELOAD"] == library, nested

    config = tree.top / "clan.conf"
    config.write_text("CLAN_ONLY=80\n")
    every = tree.variables("--only", "80,8000-8010", "--except=22", "--log", "debug", "--disable",
                           "--config", os.path.relpath(config))
    expected = {
        "CLAN_ONLY": "80,8000-8010", "CLAN_EXCEPT": "22", "CLAN_LOG": "debug", "CLAN_DISABLE": "1",
        "CLAN_CONFIG": str(config)
    }
    assert {name: every.get(name) for name in expected} == expected, every
    assert tree.variables(env={"CLAN_ONLY": "7"})["CLAN_ONLY"] == "7"
    assert tree.variables("--only", "8", env={"CLAN_ONLY": "7"})["CLAN_ONLY"] == "8"


def check_command(tree):
    # What looks like options of clan run behind the command is the command's.
    echoed = tree.run("--log", "warn", "printf", "%s|", "--log", "--help", "--", "-h", "")
    assert (echoed.returncode, echoed.stdout, echoed.stderr) == (0, "--log|--help|--|-h||",
                                                                 ""), echoed
    assert tree.run("--", "printf", "x").stdout == "x"
    assert tree.run("sh", "-c", "exit 42").returncode == 42
    pid = subprocess.Popen([tree.clan, "run", "sh", "-c", "echo $$"], stdout=subprocess.PIPE,
                           text=True, env={**os.environ, "LD_LIBRARY_PATH": str(tree.libraries)})
    assert pid.communicate(timeout=60)[0].strip() == str(pid.pid), "clan run is still in between"

    script = tree.top / "script"
    script.write_text("#!/bin/sh\necho script\n")
    refused = tree.run(script)
    assert refused.returncode == 126 and str(script) in refused.stderr, refused
    script.chmod(0o755)
    done = tree.run(script)
    assert (done.stdout, done.stderr) == ("script\n", ""), done
    by_path = tree.run("script", env={"PATH": f"/nonexistent:{tree.top}:{os.environ['PATH']}"})
    assert (by_path.stdout, by_path.stderr) == ("script\n", ""), by_path
    # As by execvp() a shell reads what the kernel does not know: a script, even one with data.
    for text in b"echo $# $1\n", b"echo $# $1; exit\n\0\0":
        script.write_bytes(text)
        done = tree.run(script, "one", "two")
        assert (done.stdout, done.stderr) == ("2 one\n", ""), done
    script.write_bytes(b"")
    assert tree.run(script).returncode == 0


def check_errors(tree):
    for arguments, code, words in [
            (["no-such-command-here"], 127, "command not found"),
            (["/no/such/file"], 127, "command not found"),
            ([tree.top], 126, "not executable"),
            ([], 2, "which command"),
            (["--"], 2, "which command"),
            (["--nonsense", "true"], 2, "no option --nonsense"),
            (["--config", tree.top / "absent", "true"], 2, "absent"),
            (["--only", "http", "true"], 2, "not a list of ports"),
            (["--only", "80,", "true"], 2, "not a list of ports"),
            (["--only", "8010-8000", "true"], 2, "not a list of ports"),
            (["--only", "80-", "true"], 2, "not a list of ports"),
            (["--only", "80,http", "true"], 2, "not a list of ports"),
            (["--except", "65536", "true"], 2, "not a list of ports"),
            (["--log", "loud", "true"], 2, "--log")]:
        done = tree.run(*arguments)
        assert words in done.stderr + done.stdout, (arguments, done)
        assert done.returncode == code, (arguments, done)
        if "ports" not in words and words != "--log":  # those are CLI11's to say
            assert done.stderr.count("\n") == 1 and done.stderr.startswith("clan run: "), done

    everybodys, file, link = (tree.top / name for name in ("everybodys", "file", "link"))
    everybodys.mkdir()
    everybodys.chmod(0o777)
    file.touch()
    link.symlink_to(tree.top)
    assert tree.run("true", env={"CLAN_DIR": str(link)}).returncode == 0
    for directory, why in [("relative", "absolute path"), (tree.top / "absent", "no directory"),
                           (file, "no directory, but something else"),
                           (file / "below", "no directory"), (everybodys, "chmod +t"),
                           ("/" + "x" * 100, "too long")]:
        config = tree.top / "directory.conf"
        config.write_text(f"# here\nCLAN_DIR={directory}\n")
        for env in ({"CLAN_DIR": str(directory)}, {"CLAN_CONFIG": str(config)}):
            done = tree.run("true", env=env)
            assert done.returncode == 2 and f"CLAN_DIR={directory} " in done.stderr, done
            assert why in done.stderr, done
            assert tree.run("true", env={**env, "CLAN_DISABLE": "1"}).returncode == 0
            if "CLAN_CONFIG" in env:
                assert tree.run("true", env={**env, "CLAN_DIR": str(tree.top)}).returncode == 0

    check_settings(tree)

    # LD_PRELOAD is split at both, and ld.so would load something else, or nothing.
    for name in ("a b", "a:b"):
        (tree.top / name).mkdir()
        done = Tree(tree.clan, tree.top / name, tree.libraries).run("echo", "ran")
        assert done.returncode == 125 and done.stdout == "" and done.stderr.count("\n") == 1, done
        assert f"{tree.top / name / 'lib' / LIBRARY}: LD_PRELOAD cannot" in done.stderr, done

    hidden = tree.library.rename(tree.library.with_suffix(".away"))
    done = tree.run("true")
    assert done.returncode == 125 and str(tree.library) in done.stderr, done
    hidden.rename(tree.library)


def check_settings(tree):
    """What the library would not understand, from the environment or a file: 2, and the reason."""
    config = tree.top / "settings.conf"
    for name, value, why in [("CLAN_ONLY", "http", '"http" is no port'),
                             ("CLAN_ONLY", "80,", "not a list of ports"),
                             ("CLAN_EXCEPT", "0", "not a list of ports"),
                             ("CLAN_EXCEPT", "9-8", "not a list of ports"),
                             ("CLAN_EXCEPT", ",".join(map(str, range(1, 66))), "more than 64"),
                             ("CLAN_UIDS", "root", '"root" is no number of a user'),
                             ("CLAN_UIDS", "4294967295", "user ids"),
                             ("CLAN_UIDS", ",".join(map(str, range(17))), "more than 16"),
                             ("CLAN_LOG", "loud", "off, error, warn, info")]:
        done = tree.run("true", env={name: value})
        assert done.returncode == 2 and f"{name}={value[:120]}" in done.stderr, done
        assert why in done.stderr, done
        listed = subprocess.run(
            [tree.clan, "env"], capture_output=True, text=True, timeout=60,
            env={**os.environ, "LD_LIBRARY_PATH": str(tree.libraries), name: value})
        assert "WRONG" in listed.stdout and why in listed.stdout, listed
        if name == "CLAN_LOG":
            continue
        config.write_text(f"# here\n\n  {name}={value} \r\n")
        done = tree.run("--config", config, "true")
        place = f"{config}, line 3: {name}="
        assert done.returncode == 2 and place in done.stderr and why in done.stderr, done
        # What the environment sets is not read in the file; what is disabled cannot be wrong.
        assert tree.run("--config", config, "true", env={name: "80"}).returncode == 0
        assert tree.run("--config", config, "--disable", "true").returncode == 0

    for line, why in [("CLAN_ONYL=80", "CLAN_ONLY, CLAN_EXCEPT, CLAN_UIDS"),
                      ("CLAN_LOG=info", "environment only"),
                      ("CLAN_ONLY =80", "space before"), ("CLAN_ONLY", "no equals sign"),
                      ("# " + "x" * 9000, "more than 8191 bytes")]:
        config.write_text(f"CLAN_EXCEPT=22\n{line}\n")
        done = tree.run("true", env={"CLAN_CONFIG": str(config)})
        assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1, done
        assert ", line 2: " in done.stderr or line.startswith("#"), done
    good = "CLAN_ONLY=80, 8000-8010\nCLAN_UIDS=0,33\n#\n\nCLAN_DISABLE=0\nCLAN_EXCEPT="
    config.write_text(good)
    done = tree.run("true", env={"CLAN_CONFIG": str(config), "CLAN_LOG": "", "CLAN_TEST_ANY": "1"})
    assert (done.returncode, done.stderr) == (0, ""), done

    done = tree.run("true", env={"CLAN_ONYL": "80", "CLAN_CONFGI": "x"})
    assert done.returncode == 0 and done.stderr.count("\n") == 2, done
    for wrong, right in (("CLAN_ONYL", "CLAN_ONLY"), ("CLAN_CONFGI", "CLAN_CONFIG")):
        line, = [text for text in done.stderr.splitlines() if wrong in text]
        assert line.startswith("clan run: warning: ") and line.endswith(right), done


def static_program():
    """An x86-64 ELF file without PT_INTERP: one segment, and exit(5)."""
    code = bytes.fromhex("b83c000000bf050000000f05")
    at = 0x400000
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, at + 120, 64, 0, 0,
                         64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, at, at, 120 + len(code), 120 + len(code), 4096)
    return header + segment + code


def dynamic_program(interpreter, note):
    """An x86-64 ELF file with PT_INTERP and a note."""
    code = bytes.fromhex("b83c000000bf060000000f05")
    at, name = 0x400000, interpreter.encode() + b"\0"
    size = 64 + 3 * 56
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 62, 1, at + size, 64, 0, 0,
                         64, 56, 3, 0, 0, 0)
    total = size + len(code) + len(name) + len(note)

    def segment(kind, flags, start, length):
        return struct.pack("<IIQQQQQQ", kind, flags, start, at + start, at + start, length, length,
                           1)
    parts = [segment(3, 4, size + len(code), len(name)),
             struct.pack("<IIQQQQQQ", 1, 5, 0, at, at, total, total, 4096),
             segment(4, 4, size + len(code) + len(name), len(note))]
    return header + b"".join(parts) + code + name + note


def foreign_program():
    """An ELF file of a machine that no kernel is for, with a line for a shell behind its head."""
    return struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 0xfeed, 1, 0x400040, 0, 0, 0,
                       64, 56, 0, 0, 0, 0) + b"\necho read by a shell\n"


def program_of_32_bits():
    """An i386 ELF file without PT_INTERP: one segment, and exit(8)."""
    code = bytes.fromhex("b801000000bb08000000cd80")
    at, size = 0x8048000, 52 + 32
    header = struct.pack("<16sHHIIIIIHHHHHH", b"\x7fELF\x01\x01\x01", 2, 3, 1, at + size, 52, 0, 0,
                         52, 32, 1, 0, 0, 0)
    segment = struct.pack("<IIIIIIII", 1, 0, at, at, size + len(code), size + len(code), 5, 4096)
    return header + segment + code


CLIENT_OF_32_BITS = r"""
struct sockaddr_in { unsigned short family, port; unsigned address; char rest[8]; };
int socket(int, int, int), connect(int, const void *, unsigned), read(int, void *, unsigned),
    write(int, const void *, unsigned);
void exit(int);
void _start(void) {
  struct sockaddr_in to = {2, __builtin_bswap16(PORT), __builtin_bswap32(0x7f000001), {0}};
  char byte = 0;
  int fd = socket(2, 1, 0), i = 0;
  if (connect(fd, &to, sizeof to) != 0) exit(1);
  for (; i < 100; ++i)
    if (write(fd, "x", 1) != 1 || read(fd, &byte, 1) != 1 || byte != 'x') exit(2);
  exit(9);
}
"""


def check_32_bits(tree):
    """Such programs run without CLAN. The second is linked with a C library of 32 bits, and has a
    server that runs with CLAN, where this machine has what it takes."""
    said = "is a 32-bit program: it will run without CLAN\n"
    program = tree.top / "bits32"
    program.write_bytes(program_of_32_bits())
    program.chmod(0o755)
    done = tree.run(program)
    _, warning, error = done.stderr.partition(f"clan run: warning: {program} {said}")
    assert warning and done.stdout == "", done
    try:
        subprocess.run([program], check=False)
        runs = True
    except OSError as refused:  # a kernel without i386
        assert refused.errno == errno.ENOEXEC, refused
        runs = False
    if runs:
        assert (done.returncode, error) == (8, ""), done
    else:
        assert (done.returncode, error) == (126, f"clan run: {program}: {CANNOT_RUN}"), done

    server = subprocess.Popen([tree.built, "run", sys.executable, "-c", """
import socket
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
client, _ = listening.accept()
while data := client.recv(9): client.send(data)
"""], stdout=subprocess.PIPE, text=True)
    port = server.stdout.readline().strip()
    source = tree.top / "bits32.c"
    source.write_text(CLIENT_OF_32_BITS)
    made = subprocess.run(["cc", "-m32", "-w", "-ffreestanding", "-fno-stack-protector",
                           "-nostdlib", "-fno-pie", "-no-pie", f"-DPORT={port}", "-o", program,
                           source, "-L/usr/lib32", "-l:libc.so.6", "-l:ld-linux.so.2"],
                          capture_output=True, check=False) if shutil.which("cc") else None
    if runs and made and made.returncode == 0 and Path("/lib/ld-linux.so.2").exists():
        done = tree.run(program)
        # The C library's loader says that it cannot load the library.
        ours, _, others = done.stderr.partition(said)
        assert done.returncode == 9 and ours.endswith(f"{program} "), done
        assert all(line.startswith("ERROR: ld.so: ") for line in others.splitlines()), done
        assert server.wait(60) == 0
    else:
        print("no program of 32 bits can be linked with a C library here")
    server.kill()
    server.communicate()


def check_foreign(tree):
    """A program that the kernel does not know how to run is not read by a shell."""
    program = tree.top / "foreign"
    program.write_bytes(foreign_program())
    program.chmod(0o755)
    done = tree.run(program)
    assert (done.returncode, done.stdout) == (126, ""), done
    assert done.stderr.splitlines(True)[-1] == f"clan run: {program}: {CANNOT_RUN}", done


def check_warnings(tree):
    static = tree.top / "static"
    static.write_bytes(static_program())
    static.chmod(0o755)
    done = tree.run(static)
    assert "statically linked" in done.stderr and "without CLAN" in done.stderr, done
    if os.uname().machine == "x86_64":
        assert done.returncode == 5, done

    check_32_bits(tree)
    check_foreign(tree)

    for word, said in (("sudo", "sudo ... clan run COMMAND"), ("su", "su ... clan run"),
                       ("pkexec", "without CLAN")):
        starter = tree.top / word
        starter.write_text("#!/bin/sh\nexit 3\n")
        starter.chmod(0o755)
        done = tree.run(starter, "true")
        assert done.returncode == 3 and said in done.stderr and done.stderr.count("\n") == 1, done
    for arguments, warned in ((["-i", "true"], True), (["-", "true"], True), ([
            "-u", "LD_PRELOAD", "true"
    ], True), (["true"], False), (["A=1", "true", "-i"], False), (["-u", "HOME", "true"], False)):
        done = tree.run("env", *arguments)
        assert ("env -i clan run" in done.stderr) == warned and done.returncode == 0, (arguments,
                                                                                       done)

    # By notes and names of interpreters in the file: these begin, and end at once.
    for name, interpreter, note, said in (
            ("go", static, b"\4\0\0\0\4\0\0\0\4\0\0\0Go\0\0abcd", "is a Go program"),
            ("other", static, b"\4\0\0\0\4\0\0\0\4\0\0\0GNU\0abcd", None),
            ("musl", tree.top / "ld-musl-x86_64.so.1", b"", "is linked with musl")):
        if interpreter != static:
            shutil.copy(static, interpreter)
        program = tree.top / name
        program.write_bytes(dynamic_program(str(interpreter), note))
        program.chmod(0o755)
        script = tree.top / f"{name}.script"
        script.write_text(f"#! {program} -x\n")
        script.chmod(0o755)
        for path in program, script:
            done = tree.run(path)
            assert (said in done.stderr) if said else done.stderr == "", done
            if os.uname().machine == "x86_64":
                assert done.returncode == 5, done
    if shutil.which("musl-gcc"):
        source = tree.top / "musl.c"
        source.write_text(
            '#include <stdlib.h>\n#include <stdio.h>\nint main(void) {'
            ' const char *p = getenv("LD_PRELOAD"); puts(p ? p : "none"); return 4; }\n')
        program = tree.top / "musl-program"
        subprocess.run(["musl-gcc", "-o", program, source], check=True)
        done = tree.run(program)
        assert (done.returncode, done.stdout) == (4,
                                                  "none\n") and done.stderr.count("\n") == 1, done

    if os.getuid() == 0:
        own = tree.top / "setuid"
        shutil.copy(shutil.which("true"), own)
        os.chown(own, 65534, 0)
        own.chmod(0o755 | stat.S_ISUID)
        done = tree.run(own)
        assert "setuid" in done.stderr and done.returncode == 0, done
        os.chown(own, 0, 0)  # our own: no change of rights, so the library is loaded
        own.chmod(0o755 | stat.S_ISUID)
        assert tree.run(own).stderr == "", "setuid to oneself"


def check_without_proc(tree):
    """`clan run` finds its library there, too."""
    if os.getuid() != 0 or subprocess.run(["unshare", "--mount", "true"],
                                          capture_output=True).returncode:
        return
    script = f"umount -l /proc && LD_LIBRARY_PATH={tree.libraries} exec {tree.clan} run env"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == "", done
    assert f"LD_PRELOAD={tree.library}\n" in done.stdout, done


def main():
    with tempfile.TemporaryDirectory() as top:
        tree = Tree(sys.argv[1], top)
        check_environment(tree)
        check_command(tree)
        check_errors(tree)
        check_warnings(tree)
        check_without_proc(tree)
        told = tree.run("--help")
        listed = subprocess.run([sys.argv[1], "env"], capture_output=True, text=True,
                                timeout=60).stdout
        for name in ("CLAN_DISABLE", "CLAN_ONLY", "CLAN_EXCEPT", "CLAN_LOG", "CLAN_CONFIG",
                     "CLAN_UIDS", "CLAN_DIR"):
            assert name in told.stdout and name in listed, (name, told, listed)
        assert "notices nothing" in " ".join(told.stdout.split()) and "COMMAND" in told.stdout, told
    return 0


if __name__ == "__main__":
    sys.exit(main())
