"""Every column of a row that a backup carries is in its record, or is left out by name."""

import pytest
from django.contrib.auth.models import User

from audit.models import ChainState, LogKey
from jobs.backup import records
from jobs.models import BackupDestination
from mirbad.accounts.models import AdminToken
from models_app.models import ApiKey, ModelDefinition, ModelSource, Placement
from nodes.models import Authority, Gpu, MasterIdentity, Node, NodePin, RevokedKey

pytestmark = pytest.mark.unit

OBSERVED = {
    *("reachability", "reachability_reason", "last_seen_at", "boot_id", "seq", "capabilities_seq", "agent_version"),
    *("protocol", "held_epoch", "held_instance", "refused_instance", "takeover_id", "takeover_epoch", "capabilities"),
    *("host", "warnings", "status_at", "engines"),
}
"""Columns of a node that the master observes, and observes again."""

CARRIED = {
    Node: ((records.NodeRecord, records.MemberRecord), OBSERVED | {"created_at"}),
    Gpu: ((records.GpuPart,), {"id", "node", "shares_host_memory", "seen", "present"}),
    NodePin: ((records.PinPart,), {"id", "node", "created_at"}),
    RevokedKey: ((records.RevokedKeyRecord,), set()),
    MasterIdentity: (
        (records.MasterRecord,),
        {
            *("id", "singleton", "bound_to", "client_key_sealed", "next_spki", "enroll_key_sealed", "fenced_reason"),
            *("stood_down_at", "claimed_by", "takeover_id", "takeovers_done", "updated_at"),
        },
    ),
    Authority: ((records.AuthorityRecord,), {"id", "slot", "key_sealed", "created_at"}),
    ModelDefinition: ((records.ModelRecord,), {"secret_env_sealed", "created_at", "updated_at"}),
    ModelSource: ((records.SourcePart,), {"id", "model", "position"}),
    Placement: (
        (records.PlacementPart,),
        {
            *("model", "node_id_text", "desired", "promised"),
            *("confirmed_config_hash", "created_at", "exits", "restart_at", "halted"),
            *("observed", "observed_boot", "observed_seq", "observed_at", "observed_generation"),
            *("observed_config_hash", "observed_reason", "observed_view"),
        },
    ),
    ChainState: ((records.AuditRecord,), {"id", "singleton", "base_seq", "base_digest", "written_seq", "base_peaks"}),
    LogKey: ((records.AuditRecord,), {"id", "singleton", "key_sealed", "created_at"}),
    ApiKey: ((records.ApiKeyRecord,), {"id"}),
    AdminToken: ((records.AdminTokenRecord,), {"id"}),
    User: ((records.PersonRecord,), {"id"}),
    BackupDestination: (
        (records.DestinationRecord, records.DestinationSecretsRecord),
        {"id", "secret_sealed", "passphrase_sealed", "schedule_from", "warn_from", "created_at"},
    ),
}


@pytest.mark.parametrize("row", CARRIED, ids=lambda row: row.__name__)
def test_no_column_is_forgotten(row):
    kinds, left_out = CARRIED[row]
    carried = {name for kind in kinds for name in kind.model_fields}
    columns = {field.name for field in row._meta.concrete_fields}
    assert columns - carried - left_out == set(), "carry it, or name it as left out"
    assert left_out - columns == set(), "there is no such column any more"
    assert left_out & carried == set()


def test_an_error_names_a_field_and_never_a_value():
    line = b'{"kind":"model-secrets","modelId":"m","env":{"HF_TOKEN":17}}'
    with pytest.raises(Exception, match="HF_TOKEN") as refused:
        records.secret_record(line)
    assert "17" not in str(refused.value)
