# SPDX-License-Identifier: Apache-2.0
from wptrace.cli.main import run

if __name__ == "__main__":
    run()
