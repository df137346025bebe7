"""Never imports torch; prints what of rankmem is loaded beside what waits."""

import json
import sys

print(json.dumps({"argv": sys.argv[1:], "attached": "rankmem_agent.preload.attach" in sys.modules}))
