-- Question: Which component does a module id stand for?
-- Columns:
--   id: of NPU_MODULE_MEM.moduleId; 33 is MindStudio's own, those from 1001 on are rankmem's components
--   name: the component
CREATE OR REPLACE VIEW mindstudio.ENUM_MODULE AS
SELECT id, name
FROM (VALUES (33, 'APP'), (1001, 'PYTORCH'), (1002, 'CUDA_GRAPH'), (1003, 'MEM_POOL'), (1004, 'PINNED_HOST')) AS m (id, name);

COMMENT ON VIEW mindstudio.ENUM_MODULE IS 'ENUM_MODULE: APP and rankmems components.';
