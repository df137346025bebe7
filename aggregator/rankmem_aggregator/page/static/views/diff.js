// What is different between A and B?

import { diffPanel } from "../panels/diff.js";

export default {
  name: "diff",
  title: "Diff",
  needsJob: true,
  mount(root) {
    const part = diffPanel(root);
    part.refresh();
    return () => part.destroy();
  },
};
