"""What the pages show of `shardtune plan` is what it prints: each sample that follows a command, line by line."""

import re
import shlex

from plan_support import ROOT, plan
from support import CliTest, main

BLOCKS = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A minute and more of searching: what is chosen is compared in test_plan_fit.py, on small models.
SEARCH = "--fit"


def samples(page):
    """Pairs of a command and the lines shown of its answer, in the order of the page."""
    blocks = [block.replace("\\\n", " ") for block in BLOCKS.findall((ROOT / page).read_text())]
    for command, shown in zip(blocks, blocks[1:]):
        if not command.startswith("build/shardtune plan ") or "peak of a step" not in shown:
            continue
        words = shlex.split(command)[2:]
        if SEARCH not in words:
            yield words, [line for line in shown.splitlines() if line.strip() and line.strip() != "..."]


class Samples(CliTest):
    def check(self, page, count):
        found = list(samples(page))
        self.assertEqual(len(found), count, "commands with a sample")
        for arguments, shown in found:
            done = plan([ROOT / word if word.startswith("configs/") else word for word in arguments])
            self.assertEqual(done.returncode, 0, done.stderr)
            printed = iter(done.stdout.splitlines())
            for line in shown:
                if line.startswith("planned in "):
                    continue
                self.assertIn(line, printed, f"{page}: not printed, or not in this order")

    def test_readme(self):
        self.check("README.md", 1)

    def test_planning(self):
        self.check("docs/planning.md", 1)


if __name__ == "__main__":
    main()
