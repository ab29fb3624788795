"""A storm over an authenticated study: keys change, clients are revoked, workers come and go."""

from __future__ import annotations

from types import MappingProxyType

from benchmarks.storm_blows import WORKERS, Storm
from pipeline.messages.envelope import header

#: A worker that comes and goes.
GUEST = "w2"
#: How a client ends that was revoked.
REFUSED = 10


class TrustedStorm(Storm):
    """An authenticated study in a storm, among changes of who is believed."""

    weights = MappingProxyType({**Storm.weights, "rotate": 12, "revoke": 16, "rebalance": 20})

    def prepare(self) -> None:
        """Make keys, and admit all clients."""
        super().prepare()
        self._run("study", "keys")
        for client in self.clients:
            enrolled = self._run("client", "enrol", "--client", client, study=False)
            (self.stage.folder / f"{client}.json").write_text(enrolled)
            self._admit(client)

    def strike(self, kind: str) -> None:
        """Let a blow fall."""
        if kind == "rotate":
            self._run("study", "keys", "--rotate")
            # a worker that starts tells the clients
            worker = self.chance.choice(WORKERS)
            self.kill(worker)
            self.start(worker)
        elif kind == "revoke":
            client = self.chance.choice(self.clients)
            self._run("client", "revoke", client)
            self.let_pass(self.chance.uniform(0.0, 2.0))
            self._admit(client)
        elif kind == "rebalance":
            if GUEST in self.stage.processes:
                self.stage.stop(GUEST)
                del self.stage.processes[GUEST]
            else:
                self.start(GUEST)
        else:
            super().strike(kind)

    def judge(self, name: str, code: int) -> None:
        """Accept the end of a client that was revoked, too."""
        said = self.stage.said(name).splitlines()[-3:]
        if code == REFUSED and "was revoked" in " ".join(said):
            self.counts["turned away"] += 1
            return
        super().judge(name, code)

    def letters(self, count: int) -> int:
        """Return how many releases came while their client was revoked."""
        found = {
            tuple(
                header(r.headers, f"veil_dlq_{part}") for part in ("partition", "offset", "reason")
            )
            for r in self.stage.dead_letters()
        }
        if len(found) != count or {reason for _, _, reason in found} - {b"revoked"}:
            self.faults.append(f"{count} dead letters are counted, and there are {sorted(found)}")
        self.counts["revoked releases"] = count
        return count

    def _admit(self, client: str) -> None:
        self._run("client", "admit", str(self.stage.folder / f"{client}.json"))

    def _run(self, room: str, command: str, *options: str, study: bool = True) -> str:
        done = self.stage.run(room, command, *[self.stage.study] * study, *options)
        if done.returncode:
            raise RuntimeError(f"{room} {command}: {done.stderr.splitlines()[-1:]}")
        return done.stdout
