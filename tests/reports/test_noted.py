"""What methods noted, read from a run's folder."""

import numpy as np
from safetensors.numpy import save_file

from coterie.reports.logged_values import MAX_FRAMES, build_group_matrix, read_server_frames


def test_frames_are_few_and_the_last_is_among_them(tmp_path):
    (tmp_path / "notes").mkdir()
    for r in range(1, 51):
        notes = {"v": np.zeros((4, 4), np.float32), "xi": np.full((4, 4), r, np.float32)}
        save_file(notes, tmp_path / "notes" / f"round-{r:05d}.safetensors")
    found = read_server_frames(tmp_path, "xi")
    assert len(found) == MAX_FRAMES
    assert found[-1][0] == 50
    assert (found[-1][1] == 50).all()
    (tmp_path / "notes" / "round-00050.safetensors").write_bytes(b"torn")
    assert read_server_frames(tmp_path, "xi")[-1][0] < 50


def test_members_of_a_group_share_alike_and_who_is_in_none_shares_nothing():
    assert np.allclose(
        build_group_matrix(np.array([0, 1, 0])), [[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]]
    )
    assert np.allclose(build_group_matrix(np.array([-1, -1])), 0)
