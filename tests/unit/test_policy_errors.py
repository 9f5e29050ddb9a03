"""Everything wrong with a policy is said at once, with line, column, key and remedy."""

from __future__ import annotations

import os
import textwrap
import time
import tracemalloc
from pathlib import Path

import pytest

import sgguard
from sgguard._text import read_text
from sgguard.errors import InvalidPolicyError, PolicyError
from sgguard.policy_file import load_policy, parse_policy

IDS = (
    "glm_image.kv_cache.mode, diffusion.backend, diffusion.role, srt.speculative_algorithm, "
    "srt.cp_strategy, srt.cp_attention_backend, diffusion.execution_mode, "
    "diffusion.workload_type, diffusion.pipeline_type, diffusion.dataset_type, "
    "diffusion.video_loader_type"
)


def errors(text: str) -> list[str]:
    with pytest.raises(InvalidPolicyError) as caught:
        parse_policy(textwrap.dedent(text), "p.yaml")
    assert len(caught.value.problems) == len(str(caught.value).splitlines())
    return str(caught.value).splitlines()


def test_all_at_once_in_the_order_of_the_file() -> None:
    assert errors(
        """\
        version: 1
        defaults: {action: fallback}
        points:
          diffusion.backnd: {action: normalise}
          diffusion.backend:
            acton: normalise
            action: normalize_it
            log: off
          srt.cp_strategy:
            action: fallback
            normalise: {caze: false, case: off}
            when: {rank: [0, x], sglang: soon}
            aliases: {zz: z z, "z_z": zigzag, n: 3}
        telemetry: {spans: all, max_value_length: 5}
        reload: {mode: never}
        """
    ) == [
        "p.yaml:2:12: defaults.action: 'fallback' is not one of observe or normalise; "
        "a fallback needs a value, so it can only be set for a point",
        "p.yaml:4:3: points.diffusion.backnd: unknown point (did you mean "
        f"'diffusion.backend'?); known: {IDS}",
        "p.yaml:6:5: points.diffusion.backend.acton: unknown key (did you mean 'action'?); "
        "known here: action, aliases, fallback, normalise, when, log, spans",
        "p.yaml:7:5: points.diffusion.backend.action: 'normalize_it' is not one of observe, "
        "normalise or fallback (did you mean 'normalise'?)",
        "p.yaml:8:5: points.diffusion.backend.log: 'off' is not one of debug, info, warning, "
        "error or none",
        "p.yaml:9:3: points.srt.cp_strategy: action fallback needs `fallback: VALUE`",
        "p.yaml:11:17: points.srt.cp_strategy.normalise.caze: unknown key (did you mean "
        "'case'?); known here: enum_value, white_space, case, separators, aliases",
        "p.yaml:11:30: points.srt.cp_strategy.normalise.case: 'off' must be true or false",
        "p.yaml:12:12: points.srt.cp_strategy.when.rank: [0, 'x'] is not a rank: a whole number "
        "from 0, or a list of them",
        "p.yaml:12:26: points.srt.cp_strategy.when.sglang: 'soon' is not a version specifier; "
        "write for example '>=0.5.20,<0.6'",
        "p.yaml:13:15: points.srt.cp_strategy.aliases.zz: stands for the alias 'z_z'; an "
        "alias must stand for a value of SGLang's",
        "p.yaml:13:39: points.srt.cp_strategy.aliases.n: 3 must be text; put it in quotes",
        "p.yaml:14:13: telemetry.spans: 'all' is not one of transitions, invalid or none",
        "p.yaml:14:25: telemetry.max_value_length: 5: input should be greater than or equal to 8",
        "p.yaml:15:10: reload.mode: 'never' is not one of live or at_restart",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml: the file is empty; it must at least say `version: 1`"),
        ("# only a comment\n", "p.yaml: the file is empty; it must at least say `version: 1`"),
        ("- a\n", "p.yaml:1:1: a policy is a mapping; it starts with `version: 1`"),
        ("points: {}\n", "p.yaml:1:1: version: is missing; a policy starts with `version: 1`"),
        ("version: 1.0\n", "p.yaml:1:1: version: must be a whole number"),
        ("version: true\n", "p.yaml:1:1: version: must be a whole number"),
        ("version: '1'\n", "p.yaml:1:1: version: must be a whole number"),
        (
            "version: 2\n",
            "p.yaml:1:1: version: 2 is not a version this sgguard knows; write `version: 1`",
        ),
        (
            "version: 1\nversion: 1\n",
            "p.yaml:2:1: version: the key 'version' is given twice, first in line 1; remove one",
        ),
        (
            "version: 1\n\tpoints: {}\n",
            "p.yaml:2:1: found character '\\t' that cannot start any token; indent with spaces",
        ),
        (
            "version: 1\npoints: &a [*a]\n",
            "p.yaml:2:13: YAML aliases (*name) are not allowed; write the value out",
        ),
        (
            "!!python/object/apply:os.system ['true']\n",
            "p.yaml:1:1: the YAML tag 'tag:yaml.org,2002:python/object/apply:os.system' is not "
            "allowed; remove it",
        ),
        (
            "version: 1\n? {a: b}\n: c\n",
            "p.yaml:2:3: a key must be plain text",
        ),
        (
            "version: !!int one\n",
            "p.yaml:1:10: version: 'one' is not a int",
        ),
        ("version: 1\n--- \nversion: 1\n", "p.yaml:2:1: but found another document"),
        ("version: 1\npoints: {a\n", "p.yaml:3:1: expected ',' or '}', but got '<stream end>'"),
        ("version: \x00\n", "p.yaml:1:10: the character '\\x00' is not allowed"),
        (
            "version: 1\npoints: {x: {aliases: {a: a}}}\n",
            "p.yaml:2:10: points.x: unknown point",
        ),
    ],
)
def test_yaml_traps(text: str, message: str) -> None:
    assert any(message in line for line in errors(text)), errors(text)


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ("{a: b, b: zigzag}", "aliases.a: stands for the alias 'b'"),
        ("{a: b, b: a}", "aliases.b: stands for the alias 'a'"),
        ("{a: A}", "aliases.a: stands for itself"),
        ("{a-b: zigzag, A_B: interleave}", "aliases.A_B: reads the same as the alias 'a-b'"),
        ("{' ': zigzag}", "aliases. : an alias must not be blank"),
        ("{'': zigzag}", "an alias must not be blank"),
    ],
)
def test_chains_cycles_and_doubles_of_aliases(aliases: str, message: str) -> None:
    text = f"version: 1\npoints:\n  srt.cp_strategy: {{aliases: {aliases}}}\n"
    assert any(message in line for line in errors(text)), errors(text)


def test_words_that_yaml_1_1_turns_into_something_else_stay_words() -> None:
    policy = parse_policy(
        "version: 1\npoints:\n  srt.cp_strategy:\n    aliases: {off: zigzag, no: zigzag, y: zigzag,"
        " 1: interleave, 0x1: interleave, 12:30: interleave, 2020-01-01: interleave}\n",
        "p.yaml",
    ).policy
    assert list(policy.points["srt.cp_strategy"].aliases) == [
        "off", "no", "y", "1", "0x1", "12:30", "2020-01-01",
    ]  # fmt: skip


def test_null_is_a_fallback_and_leaving_it_out_is_none() -> None:
    point = "srt.speculative_algorithm"
    head = f"version: 1\npoints:\n  {point}:\n    action: fallback\n"
    policy = parse_policy(head + "    fallback: null\n", "p.yaml").policy
    assert policy.rules(point)[0].fallback is None
    assert errors(head) == [f"p.yaml:3:3: points.{point}: action fallback needs `fallback: VALUE`"]


def test_a_bomb_costs_little() -> None:
    """Bounded in memory and time, whatever the text tries."""
    nested = "version: 1\npoints: " + "{a: " * 5000
    wide = "version: 1\npoints: [" + "a, " * 80_000 + "a]\n"
    laughs = "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(50))
    for text in (nested, wide, laughs, "[" * 100_000):
        tracemalloc.start()
        begin = time.monotonic()
        assert errors(text)
        assert time.monotonic() - begin < 20
        assert tracemalloc.get_traced_memory()[1] < 64e6
        tracemalloc.stop()


def test_a_file_of_50_mb(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    tracemalloc.start()
    with pytest.raises(PolicyError, match="larger than 256 KiB; this is no policy file"):
        load_policy(path)
    assert tracemalloc.get_traced_memory()[1] < 2e6
    tracemalloc.stop()


def test_bytes(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xef\xbb\xbfversion: 1\n")
    assert load_policy(path).version == 1
    path.write_bytes(b"version: 1\n# caf\xe9\n")
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert str(caught.value) == f"{path}:2:6: byte 0xe9 is not UTF-8; save the file as UTF-8"


def test_paths(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "missing.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(PolicyError) as caught:
            sgguard.install(path)
        assert str(caught.value) == (
            f"{path}: cannot read the policy file: {reason}; check the path and its rights"
        )
    with pytest.raises(PolicyError, match="embedded null"):
        read_text("a\0b")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux's /proc")
def test_a_file_that_cannot_be_read() -> None:
    """Reading this one fails for everybody, root included."""
    with pytest.raises(PolicyError, match="/proc/self/mem: cannot read the policy file: "):
        sgguard.install("/proc/self/mem")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\n")
    path.chmod(0)
    with pytest.raises(PolicyError, match="Permission denied"):
        sgguard.install(path)


def test_neither_policy_nor_path() -> None:
    with pytest.raises(PolicyError, match=r"must be a sgguard\.Policy or the path .* not 3"):
        sgguard.install(3)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="stands for itself"):
        sgguard.install(
            sgguard.Policy.model_validate(
                {"version": 1, "points": {"srt.cp_strategy": {"aliases": {"a": "a"}}}}
            )
        )
    with pytest.raises(PolicyError, match="given by its path, not by 3"):
        load_policy(3)  # type: ignore[arg-type]
    wrong = sgguard.override(3)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="takes a Policy or a mapping, not 3"):
        wrong.__enter__()
    assert not sgguard.status().installed


def test_no_error_text_carries_control_characters() -> None:
    lines = errors('version: 1\n"\\e[31mred\\nline": 2\n')
    assert lines
    assert all(line.isprintable() for line in lines)


def test_paths_of_other_types(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\n")

    class Bytes:
        def __fspath__(self) -> bytes:
            return os.fsencode(path)

    class Number:
        def __fspath__(self) -> int:
            return 3

    with sgguard.install(Bytes()) as handle:  # type: ignore[arg-type]
        assert f"from {path}" in str(handle.status())
    for load in (sgguard.install, load_policy):
        with pytest.raises(PolicyError, match="given by its path, not by"):
            load(Number())  # type: ignore[operator]


def test_error_texts_are_bounded() -> None:
    for wrong in ("x" * 10**6, "inline:{version: " + "a" * 10**5 + "}"):
        with pytest.raises(PolicyError) as caught:
            sgguard.install(wrong)
        assert len(str(caught.value)) < 3000
