-- Question: Which component does a module id stand for?
-- Columns:
--   id: of NPU_MODULE_MEM.moduleId; to 77 they are MindStudio's own, those from 1001 on are rankmem's components,
--     larger ones hashes of names that recordings have beyond those
--   name: the component
-- Scatter: none
CREATE OR REPLACE VIEW mindstudio.ENUM_MODULE AS
WITH known AS (
    SELECT (place - 1)::BIGINT AS id, name
    FROM (
        SELECT
            generate_subscripts(names, 1) AS place,
            unnest(names) AS name
        FROM (SELECT [
            'SLOG', 'IDEDD', 'IDEDH', 'HCCL', 'FMK', 'HIAIENGINE', 'DVPP', 'RUNTIME', 'CCE', 'HDC',
            'DRV', 'MDCFUSION', 'MDCLOCATION', 'MDCPERCEPTION', 'MDCFSM', 'MDCCOMMON', 'MDCMONITOR',
            'MDCBSWP', 'MDCDEFAULT', 'MDCSC', 'MDCPNC', 'MLL', 'DEVMM', 'KERNEL', 'LIBMEDIA', 'CCECPU',
            'ASCENDDK', 'ROS', 'HCCP', 'ROCE', 'TEFUSION', 'PROFILING', 'DP', 'APP', 'TS', 'TSDUMP',
            'AICPU', 'LP', 'TDT', 'FE', 'MD', 'MB', 'ME', 'IMU', 'IMP', 'GE', 'MDCFUSA', 'CAMERA',
            'ASCENDCL', 'TEEOS', 'ISP', 'SIS', 'HSM', 'DSS', 'PROCMGR', 'BBOX', 'AIVECTOR', 'TBE', 'FV',
            'MDCMAP', 'TUNE', 'HSS', 'FFTS', 'OP', 'UDF', 'HICAID', 'TSYNC', 'AUDIO', 'TPRT',
            'ASCENDCKERNEL', 'ASYS', 'ATRACE', 'RTC', 'SYSMONITOR', 'AMP', 'ADETECT', 'MBUFF', 'CUSTOM'
        ] AS names)
    )
    UNION ALL
    SELECT id, name
    FROM (VALUES (1001, 'PYTORCH'), (1002, 'CUDA_GRAPH'), (1003, 'MEM_POOL'), (1004, 'PINNED_HOST')) AS m (id, name)
)
SELECT id, name
FROM known
CROSS JOIN unstreamed
UNION ALL
SELECT mindstudio.id_of(component), component
FROM (SELECT DISTINCT component FROM component_sample)
WHERE component NOT IN (SELECT name FROM known) AND component <> 'pinned_host';

COMMENT ON VIEW mindstudio.ENUM_MODULE IS 'ENUM_MODULE: the modules of Ascend and rankmems components.';
