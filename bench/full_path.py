"""The whole loop beside smg 1.13, in one run: full_path.py --smg VENV --model-dir DIR [--rounds N] [--scenarios …]

Chat request in, chat response out: our gateway in front of an engine that costs nothing (`canned_engine.py`), and smg
in front of its own. CPU is that of the gateway's process alone. Needs the benchmark tools in ../shared/tools.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TOOLS = HERE.parents[1] / "shared" / "tools"
DERENDER = os.environ.get("DERENDER", f"{sys.executable} -m derender")

if not TOOLS.is_dir():
    sys.exit(f"{TOOLS} is not there: this benchmark runs beside the tools of that folder only")
sys.path.insert(0, str(TOOLS))

import bench_http  # noqa: E402
import procs  # noqa: E402


class Bench(bench_http.Bench):
    """The tool's own, with our gateway as one more server of each full_* workload."""

    def start_smg(self) -> None:
        if Path(self.args.smg).is_dir():
            super().start_smg()
        for name in self.full_names():
            replies = bench_http.FULL[name].replies(self.maker, self.args.bodies)
            file = self.logs / f"canned_{name}.json"
            file.write_text(json.dumps(replies))
            engine_port, port = self.port(), self.port()
            engine = procs.Process(
                [sys.executable, str(HERE / "canned_engine.py"), str(engine_port), str(file)],
                self.logs / f"canned_{name}.log",
            )
            engine.wait_port(engine_port)
            command = (
                f"{DERENDER} gateway {self.args.model_dir} --served-model-name {self.args.model} "
                f"--engine http://127.0.0.1:{engine_port} --engine-kind vllm --host 127.0.0.1 --port {port}"
            )
            gateway = procs.Process(command, self.logs / f"gateway_{name}.log", {"HF_HUB_OFFLINE": "1"})
            url = f"http://127.0.0.1:{port}"
            server = bench_http.Server(f"gateway:{name}", url, gateway.pid, [gateway, engine], gateway=True)
            self.servers.append(server)
            server.wait(self._ready(), bench_http.CHAT)

    def _ready(self) -> Any:
        return {"model": self.args.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1024}

    def taking_part(self, name: str) -> list[bench_http.Server]:
        return [one for one in self.servers if not one.gateway or one.name.endswith(f":{name}")]


if __name__ == "__main__":
    bench_http.Bench = Bench
    if not any(one.startswith("--scenarios") for one in sys.argv):
        sys.argv += ["--scenarios", "full_short,full_8k,full_stream"]
    if not any(one.startswith("--server") for one in sys.argv):
        directory = sys.argv[sys.argv.index("--model-dir") + 1]
        model = sys.argv[sys.argv.index("--model") + 1]
        parsers = "--tool-call-parser auto --reasoning-parser auto --enable-auto-tool-choice"
        sys.argv += [
            "--server",
            f"ours={DERENDER} serve {directory} --served-model-name {model} {parsers} --port {{port}}",
        ]
    bench_http.main()
