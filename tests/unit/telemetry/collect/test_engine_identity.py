"""A model's label names the model, and no place on a disk."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.runs import Spec, manifest

from driftscope.telemetry.collect.engine_identity import Identity, model_label
from driftscope.trace.format.manifest import Model

DIGEST = "1f2e3d4c5b6a7988"


def _model(name: str, **digests: str) -> Model:
    return Model(name=name, architecture="", dtype="", **{"config_digest": DIGEST, **digests})


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("org/drafter-8b", "org/drafter-8b"),
        ("chat", "chat"),
        ("ngram", "ngram"),
        ("/models/a/drafter", "drafter@1f2e3d4c"),
        ("/mnt/other/drafter/", "drafter@1f2e3d4c"),
        ("./drafter", "drafter@1f2e3d4c"),
        ("~/models/drafter", "drafter@1f2e3d4c"),
        ("/root/.cache/huggingface/hub/models--org--drafter-8b/snapshots/0a1b", "org/drafter-8b"),
    ],
)
def test_a_path_is_named_by_its_last_part_and_a_digest(name: str, label: str) -> None:
    assert model_label(_model(name)) == label


def test_the_digest_is_that_of_the_weights_where_it_is_known() -> None:
    assert model_label(_model("/m/d", weights_digest="99aabbccddeeff00")) == "d@99aabbcc"
    assert model_label(_model("/m/d", config_digest="")) == "d"


def test_replicas_with_other_mounts_have_the_same_labels() -> None:
    made = manifest(Spec())
    labels = []
    for mount in ("/mnt/a", "/var/models"):
        target, drafter = _model(f"{mount}/chat"), _model(f"{mount}/drafter")
        served = replace(made, target=target, drafter=drafter)
        labels.append(Identity(manifest=served, model=target.name).attributes)
    assert labels[0] == labels[1]
    assert not any("/" in value for value in labels[0].values())
