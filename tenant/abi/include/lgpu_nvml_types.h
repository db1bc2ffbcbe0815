/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types of the NVML ABI (driver 580) that its calls name: values and exact layouts, LP64.
 */
#ifndef LGPU_NVML_TYPES_H
#define LGPU_NVML_TYPES_H

typedef struct nvmlDevice_st* nvmlDevice_t;
typedef struct nvmlUnit_st* nvmlUnit_t;
typedef struct {
	unsigned int version;
	unsigned int domain;
	unsigned int bus;
	unsigned int device;
	unsigned int pciDeviceId;
	unsigned int pciSubSystemId;
	unsigned int baseClass;
	unsigned int subClass;
	char busId[32];
} nvmlPciInfoExt_v1_t;
typedef nvmlPciInfoExt_v1_t nvmlPciInfoExt_t;
typedef struct nvmlPciInfo_st {
	char busIdLegacy[16];
	unsigned int domain;
	unsigned int bus;
	unsigned int device;
	unsigned int pciDeviceId;
	unsigned int pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;
typedef struct nvmlEccErrorCounts_st {
	unsigned long long l1Cache;
	unsigned long long l2Cache;
	unsigned long long deviceMemory;
	unsigned long long registerFile;
} nvmlEccErrorCounts_t;
typedef struct nvmlUtilization_st { unsigned int gpu; unsigned int memory; } nvmlUtilization_t;
typedef struct nvmlMemory_st {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
} nvmlMemory_t;
typedef struct nvmlMemory_v2_st {
	unsigned int version;
	unsigned long long total;
	unsigned long long reserved;
	unsigned long long free;
	unsigned long long used;
} nvmlMemory_v2_t;
typedef struct nvmlBAR1Memory_st {
	unsigned long long bar1Total;
	unsigned long long bar1Free;
	unsigned long long bar1Used;
} nvmlBAR1Memory_t;
typedef struct nvmlProcessInfo_v1_st {
	unsigned int pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;
typedef struct nvmlProcessInfo_v2_st {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId;
	unsigned int computeInstanceId;
} nvmlProcessInfo_v2_t, nvmlProcessInfo_t;
typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId;
	unsigned int computeInstanceId;
	unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;
typedef struct {
	unsigned int version;
	unsigned int mode;
	unsigned int numProcArrayEntries;
	nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;
typedef nvmlProcessDetailList_v1_t nvmlProcessDetailList_t;
typedef struct nvmlDeviceAttributes_st {
	unsigned int multiprocessorCount;
	unsigned int sharedCopyEngineCount;
	unsigned int sharedDecoderCount;
	unsigned int sharedEncoderCount;
	unsigned int sharedJpegCount;
	unsigned int sharedOfaCount;
	unsigned int gpuInstanceSliceCount;
	unsigned int computeInstanceSliceCount;
	unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;
typedef struct { unsigned int isC2cEnabled; } nvmlC2cModeInfo_v1_t;
typedef struct { unsigned int version; unsigned int value; } nvmlDeviceAddressingMode_v1_t;
typedef nvmlDeviceAddressingMode_v1_t nvmlDeviceAddressingMode_t;
typedef struct {
	unsigned int version;
	unsigned int bChannelRepairPending;
	unsigned int bTpcRepairPending;
} nvmlRepairStatus_v1_t;
typedef nvmlRepairStatus_v1_t nvmlRepairStatus_t;
typedef enum nvmlNvLinkUtilizationCountUnits_enum {
	NVML_NVLINK_COUNTER_UNIT_CYCLES = 0, NVML_NVLINK_COUNTER_UNIT_PACKETS = 1,
	NVML_NVLINK_COUNTER_UNIT_BYTES = 2, NVML_NVLINK_COUNTER_UNIT_RESERVED = 3,
	NVML_NVLINK_COUNTER_UNIT_COUNT = 4,
} nvmlNvLinkUtilizationCountUnits_t;
typedef enum nvmlNvLinkUtilizationCountPktTypes_enum {
	NVML_NVLINK_COUNTER_PKTFILTER_NOP = 0x1, NVML_NVLINK_COUNTER_PKTFILTER_READ = 0x2,
	NVML_NVLINK_COUNTER_PKTFILTER_WRITE = 0x4, NVML_NVLINK_COUNTER_PKTFILTER_RATOM = 0x8,
	NVML_NVLINK_COUNTER_PKTFILTER_NRATOM = 0x10, NVML_NVLINK_COUNTER_PKTFILTER_FLUSH = 0x20,
	NVML_NVLINK_COUNTER_PKTFILTER_RESPDATA = 0x40, NVML_NVLINK_COUNTER_PKTFILTER_RESPNODATA = 0x80,
	NVML_NVLINK_COUNTER_PKTFILTER_ALL = 0xff,
} nvmlNvLinkUtilizationCountPktTypes_t;
typedef struct nvmlNvLinkUtilizationControl_st {
	nvmlNvLinkUtilizationCountUnits_t units;
	nvmlNvLinkUtilizationCountPktTypes_t pktfilter;
} nvmlNvLinkUtilizationControl_t;
typedef enum nvmlNvLinkCapability_enum {
	NVML_NVLINK_CAP_P2P_SUPPORTED = 0, NVML_NVLINK_CAP_SYSMEM_ACCESS = 1, NVML_NVLINK_CAP_P2P_ATOMICS = 2,
	NVML_NVLINK_CAP_SYSMEM_ATOMICS = 3, NVML_NVLINK_CAP_SLI_BRIDGE = 4, NVML_NVLINK_CAP_VALID = 5,
	NVML_NVLINK_CAP_COUNT = 6,
} nvmlNvLinkCapability_t;
typedef enum nvmlNvLinkErrorCounter_enum {
	NVML_NVLINK_ERROR_DL_REPLAY = 0, NVML_NVLINK_ERROR_DL_RECOVERY = 1, NVML_NVLINK_ERROR_DL_CRC_FLIT = 2,
	NVML_NVLINK_ERROR_DL_CRC_DATA = 3, NVML_NVLINK_ERROR_DL_ECC_DATA = 4, NVML_NVLINK_ERROR_COUNT = 5,
} nvmlNvLinkErrorCounter_t;
typedef enum nvmlIntNvLinkDeviceType_enum {
	NVML_NVLINK_DEVICE_TYPE_GPU = 0x0, NVML_NVLINK_DEVICE_TYPE_IBMNPU = 0x1,
	NVML_NVLINK_DEVICE_TYPE_SWITCH = 0x2, NVML_NVLINK_DEVICE_TYPE_UNKNOWN = 0xff,
} nvmlIntNvLinkDeviceType_t;
typedef enum nvmlGpuLevel_enum {
	NVML_TOPOLOGY_INTERNAL = 0, NVML_TOPOLOGY_SINGLE = 10, NVML_TOPOLOGY_MULTIPLE = 20,
	NVML_TOPOLOGY_HOSTBRIDGE = 30, NVML_TOPOLOGY_NODE = 40, NVML_TOPOLOGY_SYSTEM = 50,
} nvmlGpuTopologyLevel_t;
typedef enum nvmlGpuP2PStatus_enum {
	NVML_P2P_STATUS_OK = 0, NVML_P2P_STATUS_CHIPSET_NOT_SUPPORED = 1,
	NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED = 1, NVML_P2P_STATUS_GPU_NOT_SUPPORTED = 2,
	NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED = 3, NVML_P2P_STATUS_DISABLED_BY_REGKEY = 4,
	NVML_P2P_STATUS_NOT_SUPPORTED = 5, NVML_P2P_STATUS_UNKNOWN = 6,
} nvmlGpuP2PStatus_t;
typedef enum nvmlGpuP2PCapsIndex_enum {
	NVML_P2P_CAPS_INDEX_READ = 0, NVML_P2P_CAPS_INDEX_WRITE = 1, NVML_P2P_CAPS_INDEX_NVLINK = 2,
	NVML_P2P_CAPS_INDEX_ATOMICS = 3, NVML_P2P_CAPS_INDEX_PCI = 4, NVML_P2P_CAPS_INDEX_PROP = 4,
	NVML_P2P_CAPS_INDEX_UNKNOWN = 5,
}nvmlGpuP2PCapsIndex_t;
typedef enum nvmlSamplingType_enum {
	NVML_TOTAL_POWER_SAMPLES = 0, NVML_GPU_UTILIZATION_SAMPLES = 1, NVML_MEMORY_UTILIZATION_SAMPLES = 2,
	NVML_ENC_UTILIZATION_SAMPLES = 3, NVML_DEC_UTILIZATION_SAMPLES = 4, NVML_PROCESSOR_CLK_SAMPLES = 5,
	NVML_MEMORY_CLK_SAMPLES = 6, NVML_MODULE_POWER_SAMPLES = 7, NVML_JPG_UTILIZATION_SAMPLES = 8,
	NVML_OFA_UTILIZATION_SAMPLES = 9, NVML_SAMPLINGTYPE_COUNT = 10,
}nvmlSamplingType_t;
typedef enum nvmlPcieUtilCounter_enum {
	NVML_PCIE_UTIL_TX_BYTES = 0, NVML_PCIE_UTIL_RX_BYTES = 1, NVML_PCIE_UTIL_COUNT = 2,
} nvmlPcieUtilCounter_t;
typedef enum nvmlValueType_enum {
	NVML_VALUE_TYPE_DOUBLE = 0, NVML_VALUE_TYPE_UNSIGNED_INT = 1, NVML_VALUE_TYPE_UNSIGNED_LONG = 2,
	NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3, NVML_VALUE_TYPE_SIGNED_LONG_LONG = 4,
	NVML_VALUE_TYPE_SIGNED_INT = 5, NVML_VALUE_TYPE_UNSIGNED_SHORT = 6, NVML_VALUE_TYPE_COUNT = 7,
}nvmlValueType_t;
typedef union nvmlValue_st {
	double dVal;
	int siVal;
	unsigned int uiVal;
	unsigned long ulVal;
	unsigned long long ullVal;
	signed long long sllVal;
	unsigned short usVal;
} nvmlValue_t;
typedef struct nvmlSample_st { unsigned long long timeStamp; nvmlValue_t sampleValue; } nvmlSample_t;
typedef enum nvmlPerfPolicyType_enum {
	NVML_PERF_POLICY_POWER = 0, NVML_PERF_POLICY_THERMAL = 1, NVML_PERF_POLICY_SYNC_BOOST = 2,
	NVML_PERF_POLICY_BOARD_LIMIT = 3, NVML_PERF_POLICY_LOW_UTILIZATION = 4, NVML_PERF_POLICY_RELIABILITY = 5,
	NVML_PERF_POLICY_TOTAL_APP_CLOCKS = 10, NVML_PERF_POLICY_TOTAL_BASE_CLOCKS = 11,
	NVML_PERF_POLICY_COUNT = 12,
}nvmlPerfPolicyType_t;
typedef struct nvmlViolationTime_st {
	unsigned long long referenceTime;
	unsigned long long violationTime;
} nvmlViolationTime_t;
typedef enum {
	NVML_THERMAL_TARGET_NONE = 0, NVML_THERMAL_TARGET_GPU = 1, NVML_THERMAL_TARGET_MEMORY = 2,
	NVML_THERMAL_TARGET_POWER_SUPPLY = 4, NVML_THERMAL_TARGET_BOARD = 8, NVML_THERMAL_TARGET_VCD_BOARD = 9,
	NVML_THERMAL_TARGET_VCD_INLET = 10, NVML_THERMAL_TARGET_VCD_OUTLET = 11, NVML_THERMAL_TARGET_ALL = 15,
	NVML_THERMAL_TARGET_UNKNOWN = -1,
} nvmlThermalTarget_t;
typedef enum {
	NVML_THERMAL_CONTROLLER_NONE = 0, NVML_THERMAL_CONTROLLER_GPU_INTERNAL = 1,
	NVML_THERMAL_CONTROLLER_ADM1032 = 2, NVML_THERMAL_CONTROLLER_ADT7461 = 3,
	NVML_THERMAL_CONTROLLER_MAX6649 = 4, NVML_THERMAL_CONTROLLER_MAX1617 = 5, NVML_THERMAL_CONTROLLER_LM99 = 6,
	NVML_THERMAL_CONTROLLER_LM89 = 7, NVML_THERMAL_CONTROLLER_LM64 = 8, NVML_THERMAL_CONTROLLER_G781 = 9,
	NVML_THERMAL_CONTROLLER_ADT7473 = 10, NVML_THERMAL_CONTROLLER_SBMAX6649 = 11,
	NVML_THERMAL_CONTROLLER_VBIOSEVT = 12, NVML_THERMAL_CONTROLLER_OS = 13,
	NVML_THERMAL_CONTROLLER_NVSYSCON_CANOAS = 14, NVML_THERMAL_CONTROLLER_NVSYSCON_E551 = 15,
	NVML_THERMAL_CONTROLLER_MAX6649R = 16, NVML_THERMAL_CONTROLLER_ADT7473S = 17,
	NVML_THERMAL_CONTROLLER_UNKNOWN = -1,
} nvmlThermalController_t;
typedef struct {
	unsigned int count;
	struct {
		nvmlThermalController_t controller;
		int defaultMinTemp;
		int defaultMaxTemp;
		int currentTemp;
		nvmlThermalTarget_t target;
	} sensor[3];
} nvmlGpuThermalSettings_t;
typedef union { char str[41]; unsigned char bytes[16]; } nvmlUUIDValue_t;
typedef struct { unsigned int version; unsigned int type; nvmlUUIDValue_t value; } nvmlUUID_v1_t;
typedef nvmlUUID_v1_t nvmlUUID_t;
typedef enum nvmlEnableState_enum {
	NVML_FEATURE_DISABLED = 0, NVML_FEATURE_ENABLED = 1,
} nvmlEnableState_t;
typedef enum nvmlBrandType_enum {
	NVML_BRAND_UNKNOWN = 0, NVML_BRAND_QUADRO = 1, NVML_BRAND_TESLA = 2, NVML_BRAND_NVS = 3,
	NVML_BRAND_GRID = 4, NVML_BRAND_GEFORCE = 5, NVML_BRAND_TITAN = 6, NVML_BRAND_NVIDIA_VAPPS = 7,
	NVML_BRAND_NVIDIA_VPC = 8, NVML_BRAND_NVIDIA_VCS = 9, NVML_BRAND_NVIDIA_VWS = 10,
	NVML_BRAND_NVIDIA_CLOUD_GAMING = 11, NVML_BRAND_NVIDIA_VGAMING = 11, NVML_BRAND_QUADRO_RTX = 12,
	NVML_BRAND_NVIDIA_RTX = 13, NVML_BRAND_NVIDIA = 14, NVML_BRAND_GEFORCE_RTX = 15, NVML_BRAND_TITAN_RTX = 16,
	NVML_BRAND_COUNT = 18,
} nvmlBrandType_t;
typedef enum nvmlTemperatureThresholds_enum {
	NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1,
	NVML_TEMPERATURE_THRESHOLD_MEM_MAX = 2, NVML_TEMPERATURE_THRESHOLD_GPU_MAX = 3,
	NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MIN = 4, NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_CURR = 5,
	NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MAX = 6, NVML_TEMPERATURE_THRESHOLD_GPS_CURR = 7,
	NVML_TEMPERATURE_THRESHOLD_COUNT = 8,
} nvmlTemperatureThresholds_t;
typedef enum nvmlTemperatureSensors_enum {
	NVML_TEMPERATURE_GPU = 0, NVML_TEMPERATURE_COUNT = 1,
} nvmlTemperatureSensors_t;
typedef enum nvmlComputeMode_enum {
	NVML_COMPUTEMODE_DEFAULT = 0, NVML_COMPUTEMODE_EXCLUSIVE_THREAD = 1, NVML_COMPUTEMODE_PROHIBITED = 2,
	NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3, NVML_COMPUTEMODE_COUNT = 4,
} nvmlComputeMode_t;
typedef struct nvmlClkMonFaultInfo_struct {
	unsigned int clkApiDomain;
	unsigned int clkDomainFaultMask;
} nvmlClkMonFaultInfo_t;
typedef struct nvmlClkMonStatus_status {
	unsigned int bGlobalStatus;
	unsigned int clkMonListSize;
	nvmlClkMonFaultInfo_t clkMonList[32];
} nvmlClkMonStatus_t;
typedef enum nvmlMemoryErrorType_enum {
	NVML_MEMORY_ERROR_TYPE_CORRECTED = 0, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1,
	NVML_MEMORY_ERROR_TYPE_COUNT = 2,
} nvmlMemoryErrorType_t;
typedef enum nvmlEccCounterType_enum {
	NVML_VOLATILE_ECC = 0, NVML_AGGREGATE_ECC = 1, NVML_ECC_COUNTER_TYPE_COUNT = 2,
} nvmlEccCounterType_t;
typedef enum nvmlClockType_enum {
	NVML_CLOCK_GRAPHICS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, NVML_CLOCK_VIDEO = 3, NVML_CLOCK_COUNT = 4,
} nvmlClockType_t;
typedef enum nvmlClockId_enum {
	NVML_CLOCK_ID_CURRENT = 0, NVML_CLOCK_ID_APP_CLOCK_TARGET = 1, NVML_CLOCK_ID_APP_CLOCK_DEFAULT = 2,
	NVML_CLOCK_ID_CUSTOMER_BOOST_MAX = 3, NVML_CLOCK_ID_COUNT = 4,
} nvmlClockId_t;
typedef enum nvmlDriverModel_enum {
	NVML_DRIVER_WDDM = 0, NVML_DRIVER_WDM = 1, NVML_DRIVER_MCDM = 2,
} nvmlDriverModel_t;
typedef enum nvmlPStates_enum {
	NVML_PSTATE_0 = 0, NVML_PSTATE_1 = 1, NVML_PSTATE_2 = 2, NVML_PSTATE_3 = 3, NVML_PSTATE_4 = 4,
	NVML_PSTATE_5 = 5, NVML_PSTATE_6 = 6, NVML_PSTATE_7 = 7, NVML_PSTATE_8 = 8, NVML_PSTATE_9 = 9,
	NVML_PSTATE_10 = 10, NVML_PSTATE_11 = 11, NVML_PSTATE_12 = 12, NVML_PSTATE_13 = 13, NVML_PSTATE_14 = 14,
	NVML_PSTATE_15 = 15, NVML_PSTATE_UNKNOWN = 32,
} nvmlPstates_t;
typedef struct {
	unsigned int version;
	nvmlClockType_t type;
	nvmlPstates_t pstate;
	int clockOffsetMHz;
	int minClockOffsetMHz;
	int maxClockOffsetMHz;
} nvmlClockOffset_v1_t;
typedef nvmlClockOffset_v1_t nvmlClockOffset_t;
typedef struct { unsigned int version; unsigned int fan; unsigned int speed; } nvmlFanSpeedInfo_v1_t;
typedef nvmlFanSpeedInfo_v1_t nvmlFanSpeedInfo_t;
typedef struct { unsigned int version; char str[2048]; } nvmlDevicePerfModes_v1_t;
typedef nvmlDevicePerfModes_v1_t nvmlDevicePerfModes_t;
typedef struct { unsigned int version; char str[2048]; } nvmlDeviceCurrentClockFreqs_v1_t;
typedef nvmlDeviceCurrentClockFreqs_v1_t nvmlDeviceCurrentClockFreqs_t;
typedef enum nvmlGom_enum {
	NVML_GOM_ALL_ON = 0, NVML_GOM_COMPUTE = 1, NVML_GOM_LOW_DP = 2,
} nvmlGpuOperationMode_t;
typedef enum nvmlInforomObject_enum {
	NVML_INFOROM_OEM = 0, NVML_INFOROM_ECC = 1, NVML_INFOROM_POWER = 2, NVML_INFOROM_DEN = 3,
	NVML_INFOROM_COUNT = 4,
} nvmlInforomObject_t;
typedef enum nvmlReturn_enum {
	NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1, NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_NO_PERMISSION = 4, NVML_ERROR_ALREADY_INITIALIZED = 5,
	NVML_ERROR_NOT_FOUND = 6, NVML_ERROR_INSUFFICIENT_SIZE = 7, NVML_ERROR_INSUFFICIENT_POWER = 8,
	NVML_ERROR_DRIVER_NOT_LOADED = 9, NVML_ERROR_TIMEOUT = 10, NVML_ERROR_IRQ_ISSUE = 11,
	NVML_ERROR_LIBRARY_NOT_FOUND = 12, NVML_ERROR_FUNCTION_NOT_FOUND = 13, NVML_ERROR_CORRUPTED_INFOROM = 14,
	NVML_ERROR_GPU_IS_LOST = 15, NVML_ERROR_RESET_REQUIRED = 16, NVML_ERROR_OPERATING_SYSTEM = 17,
	NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18, NVML_ERROR_IN_USE = 19, NVML_ERROR_MEMORY = 20,
	NVML_ERROR_NO_DATA = 21, NVML_ERROR_VGPU_ECC_NOT_SUPPORTED = 22, NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
	NVML_ERROR_FREQ_NOT_SUPPORTED = 24, NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25, NVML_ERROR_DEPRECATED = 26,
	NVML_ERROR_NOT_READY = 27, NVML_ERROR_GPU_NOT_FOUND = 28, NVML_ERROR_INVALID_STATE = 29,
	NVML_ERROR_RESET_TYPE_NOT_SUPPORTED = 30, NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;
typedef enum nvmlMemoryLocation_enum {
	NVML_MEMORY_LOCATION_L1_CACHE = 0, NVML_MEMORY_LOCATION_L2_CACHE = 1, NVML_MEMORY_LOCATION_DRAM = 2,
	NVML_MEMORY_LOCATION_DEVICE_MEMORY = 2, NVML_MEMORY_LOCATION_REGISTER_FILE = 3,
	NVML_MEMORY_LOCATION_TEXTURE_MEMORY = 4, NVML_MEMORY_LOCATION_TEXTURE_SHM = 5,
	NVML_MEMORY_LOCATION_CBU = 6, NVML_MEMORY_LOCATION_SRAM = 7, NVML_MEMORY_LOCATION_COUNT = 8,
} nvmlMemoryLocation_t;
typedef enum nvmlPageRetirementCause_enum {
	NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS = 0,
	NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR = 1, NVML_PAGE_RETIREMENT_CAUSE_COUNT = 2,
} nvmlPageRetirementCause_t;
typedef enum nvmlRestrictedAPI_enum {
	NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS = 0, NVML_RESTRICTED_API_SET_AUTO_BOOSTED_CLOCKS = 1,
	NVML_RESTRICTED_API_COUNT = 2,
} nvmlRestrictedAPI_t;
typedef struct nvmlProcessUtilizationSample_st {
	unsigned int pid;
	unsigned long long timeStamp;
	unsigned int smUtil;
	unsigned int memUtil;
	unsigned int encUtil;
	unsigned int decUtil;
} nvmlProcessUtilizationSample_t;
typedef struct {
	unsigned long long timeStamp;
	unsigned int pid;
	unsigned int smUtil;
	unsigned int memUtil;
	unsigned int encUtil;
	unsigned int decUtil;
	unsigned int jpgUtil;
	unsigned int ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;
typedef struct {
	unsigned int version;
	unsigned int processSamplesCount;
	unsigned long long lastSeenTimeStamp;
	nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;
typedef nvmlProcessesUtilizationInfo_v1_t nvmlProcessesUtilizationInfo_t;
typedef unsigned int nvmlDeviceArchitecture_t; typedef unsigned int nvmlBusType_t;
typedef unsigned int nvmlPowerSource_t;
typedef struct nvmlGpuDynamicPstatesInfo_st {
	unsigned int flags;
	struct {
		unsigned int bIsPresent;
		unsigned int percentage;
		unsigned int incThreshold;
		unsigned int decThreshold;
	} utilization[8];
} nvmlGpuDynamicPstatesInfo_t;
typedef unsigned char nvmlPowerScopeType_t;
typedef struct {
	unsigned int version;
	nvmlPowerScopeType_t powerScope;
	unsigned int powerValueMw;
} nvmlPowerValue_v2_t;
typedef enum nvmlGpuVirtualizationMode {
	NVML_GPU_VIRTUALIZATION_MODE_NONE = 0, NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH = 1,
	NVML_GPU_VIRTUALIZATION_MODE_VGPU = 2, NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU = 3,
	NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA = 4,
} nvmlGpuVirtualizationMode_t;
typedef unsigned int nvmlVgpuInstance_t;
typedef struct nvmlNvLinkPowerThres_st { unsigned int lowPwrThreshold; } nvmlNvLinkPowerThres_t;
typedef struct nvmlFieldValue_st {
	unsigned int fieldId;
	unsigned int scopeId;
	long long timestamp;
	long long latencyUsec;
	nvmlValueType_t valueType;
	nvmlReturn_t nvmlReturn;
	nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct nvmlHwbcEntry_st { unsigned int hwbcId; char firmwareVersion[32]; } nvmlHwbcEntry_t;
typedef struct nvmlEventSet_st* nvmlEventSet_t;
typedef struct nvmlEventData_st {
	nvmlDevice_t device;
	unsigned long long eventType;
	unsigned long long eventData;
	unsigned int gpuInstanceId;
	unsigned int computeInstanceId;
} nvmlEventData_t;
typedef struct nvmlSystemEventSet_st* nvmlSystemEventSet_t;
typedef struct { unsigned int version; nvmlSystemEventSet_t set; } nvmlSystemEventSetCreateRequest_v1_t;
typedef nvmlSystemEventSetCreateRequest_v1_t nvmlSystemEventSetCreateRequest_t;
typedef struct { unsigned int version; nvmlSystemEventSet_t set; } nvmlSystemEventSetFreeRequest_v1_t;
typedef nvmlSystemEventSetFreeRequest_v1_t nvmlSystemEventSetFreeRequest_t;
typedef struct {
	unsigned int version;
	unsigned long long eventTypes;
	nvmlSystemEventSet_t set;
} nvmlSystemRegisterEventRequest_v1_t;
typedef nvmlSystemRegisterEventRequest_v1_t nvmlSystemRegisterEventRequest_t;
typedef struct { unsigned long long eventType; unsigned int gpuId; } nvmlSystemEventData_v1_t;
typedef struct {
	unsigned int version;
	unsigned int timeoutms;
	nvmlSystemEventSet_t set;
	nvmlSystemEventData_v1_t *data;
	unsigned int dataSize;
	unsigned int numEvent;
} nvmlSystemEventSetWaitRequest_v1_t;
typedef nvmlSystemEventSetWaitRequest_v1_t nvmlSystemEventSetWaitRequest_t;
typedef struct nvmlAccountingStats_st {
	unsigned int gpuUtilization;
	unsigned int memoryUtilization;
	unsigned long long maxMemoryUsage;
	unsigned long long time;
	unsigned long long startTime;
	unsigned int isRunning;
	unsigned int reserved[5];
} nvmlAccountingStats_t;
typedef enum nvmlFBCSessionType_enum {
	NVML_FBC_SESSION_TYPE_UNKNOWN = 0, NVML_FBC_SESSION_TYPE_TOSYS = 1, NVML_FBC_SESSION_TYPE_CUDA = 2,
	NVML_FBC_SESSION_TYPE_VID = 3, NVML_FBC_SESSION_TYPE_HWENC = 4,
} nvmlFBCSessionType_t;
typedef enum nvmlEncoderQueryType_enum {
	NVML_ENCODER_QUERY_H264 = 0, NVML_ENCODER_QUERY_HEVC = 1, NVML_ENCODER_QUERY_AV1 = 2, NVML_ENCODER_QUERY_UNKNOWN = 255,
} nvmlEncoderType_t;
typedef struct nvmlEncoderSessionInfo_st {
	unsigned int sessionId;
	unsigned int pid;
	nvmlVgpuInstance_t vgpuInstance;
	nvmlEncoderType_t codecType;
	unsigned int hResolution;
	unsigned int vResolution;
	unsigned int averageFps;
	unsigned int averageLatency;
} nvmlEncoderSessionInfo_t;
typedef struct nvmlFBCStats_st {
	unsigned int sessionsCount;
	unsigned int averageFPS;
	unsigned int averageLatency;
} nvmlFBCStats_t;
typedef struct nvmlFBCSessionInfo_st {
	unsigned int sessionId;
	unsigned int pid;
	nvmlVgpuInstance_t vgpuInstance;
	unsigned int displayOrdinal;
	nvmlFBCSessionType_t sessionType;
	unsigned int sessionFlags;
	unsigned int hMaxResolution;
	unsigned int vMaxResolution;
	unsigned int hResolution;
	unsigned int vResolution;
	unsigned int averageFPS;
	unsigned int averageLatency;
} nvmlFBCSessionInfo_t;
typedef enum nvmlDetachGpuState_enum {
	NVML_DETACH_GPU_KEEP = 0, NVML_DETACH_GPU_REMOVE = 1,
} nvmlDetachGpuState_t;
typedef enum nvmlPcieLinkState_enum {
	NVML_PCIE_LINK_KEEP = 0, NVML_PCIE_LINK_SHUT_DOWN = 1,
} nvmlPcieLinkState_t;
typedef unsigned char nvmlGpuFabricState_t;
typedef struct {
	unsigned char clusterUuid[16];
	nvmlReturn_t status;
	unsigned int cliqueId;
	nvmlGpuFabricState_t state;
} nvmlGpuFabricInfo_t;
typedef struct {
	unsigned int version;
	unsigned char clusterUuid[16];
	nvmlReturn_t status;
	unsigned int cliqueId;
	nvmlGpuFabricState_t state;
	unsigned int healthMask;
	unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;
typedef nvmlGpuFabricInfo_v3_t nvmlGpuFabricInfoV_t;
typedef struct { unsigned int version; char branch[80]; } nvmlSystemDriverBranchInfo_v1_t;
typedef nvmlSystemDriverBranchInfo_v1_t nvmlSystemDriverBranchInfo_t;
typedef unsigned int nvmlAffinityScope_t;
typedef struct {
	unsigned int version;
	nvmlTemperatureSensors_t sensorType;
	int temperature;
} nvmlTemperature_v1_t;
typedef nvmlTemperature_v1_t nvmlTemperature_t;
typedef struct {
	unsigned int version;
	unsigned char bwModes[23];
	unsigned char totalBwModes;
} nvmlNvlinkSupportedBwModes_v1_t;
typedef nvmlNvlinkSupportedBwModes_v1_t nvmlNvlinkSupportedBwModes_t;
typedef struct {
	unsigned char ucodeType;
	unsigned int major;
	unsigned int minor;
	unsigned int subMinor;
} nvmlNvlinkFirmwareVersion_t;
typedef struct {
	nvmlNvlinkFirmwareVersion_t firmwareVersion[100];
	unsigned int numValidEntries;
} nvmlNvlinkFirmwareInfo_t;
typedef struct {
	unsigned int version;
	unsigned int isNvleEnabled;
	nvmlNvlinkFirmwareInfo_t firmwareInfo;
} nvmlNvLinkInfo_v2_t;
typedef nvmlNvLinkInfo_v2_t nvmlNvLinkInfo_t;
typedef struct nvmlExcludedDeviceInfo_st { nvmlPciInfo_t pciInfo; char uuid[80]; } nvmlExcludedDeviceInfo_t;
typedef struct {
	unsigned dataSize;
	unsigned status;
	union {
		unsigned char inData[496];
		unsigned char outData[496];
	};
} nvmlPRMTLV_v1_t;
typedef struct { unsigned int version; unsigned int capMask; } nvmlDeviceCapabilities_v1_t;
typedef nvmlDeviceCapabilities_v1_t nvmlDeviceCapabilities_t;

#endif
