#include "agent/failures/rules.h"

#include <algorithm>
#include <array>
#include <vector>

namespace muster {
namespace {

using enum FailureClass;
using enum Weight;

// Patterns between '|', spaces around them dropped.
struct Group {
  FailureClass cls;
  Weight weight;
  std::string_view patterns;
  bool of_driver = false;  // hosts' rules: about the devices' driver
};

// A line that patterns of several groups match is the first group's of the largest weight; within a
// group the order doesn't matter.
constexpr Group kGroups[] = {
    // devices whose sentence speaks of memory
    {kDevice, kCause,
     R"(cuda_error_contained | cudaerrorcontained | gpu memory*ecc | invalid access of peer gpu memory over nvlink)"},
    // hosts whose sentence speaks of something else
    {kHost, kCause,
     R"(/dev/nvme*i/o error | /dev/sd*i/o error | aborting journal on device | dev nvme*i/o error | dev sd*i/o error |
due to node failure | ext4-fs error | i/o error*dev nvme | i/o error*dev sd | no space left on device*'/local |
no space left on device*'/run | no space left on device*'/tmp | no space left on device*'/var |
no space left on device*/root/.cache | nvme*i/o cmd*error | nvme*i/o*timeout | remounting filesystem read-only |
xfs*corruption | xfs*shutting down filesystem)"},
    // full shared memory, workers that the kernel shot
    {kOom, kCause,
     R"(/dev/shm*no space left on device | dataloader worker*killed by signal: bus error |
dataloader worker*killed by signal: killed | insufficient shared memory | low on resource: memory |
no space left on device*/dev/shm | out of shared memory | unable to write to file </torch_)"},
    {kHost, kCause, R"(low on resource: ephemeral-storage)"},
    // memory
    {kOom, kCause,
     R"(/dev/shm*error | <memoryerror> | allocation on device | allocator ran out of memory | arraymemoryerror |
arrowmemoryerror | attempting to allocate | bytes of memory*failed | cannot allocate memory | cgroup memory peak 100 |
could not allocate*bytes | cublas_status_alloc_failed | cuda error: out of memory | cuda failure 'out of memory' |
cuda failure 2 'out of memory' | cuda malloc failed | cuda out of memory | cuda_error_out_of_memory |
cudaerrormemoryallocation | cudahostalloc*out of memory | cudamalloc*out of memory | cudnn_status_alloc_failed |
defaultcpuallocator: can't allocate memory | defaultcpuallocator: not enough memory | due to memory pressure |
error*/dev/shm | exceeded its memory | exceeded job memory limit | exceeded memory limit | exceeded step memory limit |
exceeds the memory limit | exhausted*memory | failed to alloc*cuda*memory | failed to allocate memory |
failed to allocate*bytes | failed to extend /dev/shm | hip error: out of memory | hip out of memory |
hiperroroutofmemory | insufficient memory | invoked oom-killer | killed*due to*memory | low on memory | malloc of*failed |
memory cgroup out of memory | memory exhausted | memory limit*exceeded | memory monitor*killed | memory pressure*kill |
mmap*cannot allocate memory | not enough gpu memory | not enough memory | oom killed | oom killer | oom when allocating |
oom-kill | oom-killer | oom_kill | oomkilled | out of memory handler | out of memory: killed process | out-of-memory |
outofmemoryerror | ran out of memory | ran out of memory in memory space | resource exhausted: oom | resource_exhausted |
resource_exhausted: out of memory | resourceexhaustederror | std::bad_alloc | total-vm | tried to allocate |
unable to allocate | unable to allocate*for an array | unable to mmap*bytes from file*cannot allocate |
would exceed allowed memory)"},
    {kOom, kConsequence, R"(cgroup memory peak 99 | percent = 97 | percent = 98 | percent = 99)"},
    {kOom, kHint, R"(out of memory)"},
    // devices
    {kDevice, kCause, R"(core halted unexpectedly)"},
    {kDevice, kCause,
     R"(<nvlink*error | <sxid> | accelerator*unhealthy | aer: *uncorrected*fatal | amdgpu*<ras> | amdgpu: gpu reset |
contained ecc | cuda error: all cuda-capable devices are busy or unavailable |
cuda error: an illegal instruction was encountered | cuda error: hardware stack error |
cuda error: no cuda-capable device is detected | cuda error: uncorrectable | cuda_error_device_unavailable |
cuda_error_ecc_uncorrectable | cuda_error_hardware_stack_error | cuda_error_nvlink_uncorrectable |
cuda_error_system_not_ready | cudaerrordevicesunavailable | cudaerroreccuncorrectable | cudaerrorhardwarestackerror |
cudaerrornodevice | cudaerrorsystemnotready | dcgm*fail | device*unhealthy | devices are busy or unavailable |
double bit ecc | double-bit ecc | ecc error | error 802 | error*<nvlink | fabric state*fail | fallen off the bus |
fell off the bus | gpu hang | gpu hardware error | gpu has been reset | gpu has fallen | gpu is lost |
gpu is not healthy | gpu partition is unusable | gpu recovery action | gpu requires reset | gpu reset |
gpu temperature*shutdown | gpu*in an unrecoverable state | gpu*unhealthy | gsp rpc timeout | hardware error*gpu |
hardware exception by gpu | hbm*uncorrectable | hw exception by gpu | link width*degraded | no devices were found |
nvlink*down | nvlink*failure | nvlink*fatal | nvlinkuncorrectable | nvml_error_gpu_is_lost | nvswitch*error |
nvswitch*fatal | page retirement | pcie bus error | pcie*fatal error | poison*gpu | ras*uncorrectable | remapped rows |
reset required | retired pages | row remapper | row remapping failure | row_remap | silent data corruption |
sram uncorrectable | system not yet initialized | thermal*shutdown | timeout waiting for rpc from gsp | tpu*chip*error |
tpu*hardware | tpu*unhealthy | unable to communicate with the gpu | unable to determine the device handle for gpu |
uncorrectable ecc | uncorrectable error | uncorrectable nvlink)"},
    {kDevice, kConsequence,
     R"(cuda error: unknown error | cuda_error_unknown | cudaerrorunknown | hsa_status_error)"},
    {kDevice, kHint, R"(cuda error: unknown error)"},
    // networks
    {kNetwork, kConsequence, R"(actordiederror | ucx  error | ucx error)"},
    {kNetwork, kConsequence,
     R"(<brokenpipeerror> | <connectionerror> | <connectionrefusederror> | <connectionreseterror> | <diststoreerror | <ibv_ |
<rnr | <unavailable: | because the health check failed | broken pipe | btl_tcp | call to connect returned | call to ibv_ |
call to recv from | cannot connect | closed by remote host | connect*timed out | connecterror | connection aborted |
connection closed by peer | connection closed by remote peer | connection lost | connection refused |
connection reset by peer | connection timed out | connection was reset | connection*closed | connecttimeout |
coordination service*error | coordination*unavailable | coordination_service*error | could not connect |
daemon has unexpectedly failed | deadline_exceeded | distnetworkerror | distributed service detected fatal errors |
distributedstoreerror | diststoreerror | end of file on communication | endpoint timeout | errno 101] | errno 104] |
errno 110] | errno 111] | errno 113] | errno: 104 | errno: 110 | errno: 111 | errno: 113 | failed to connect |
failed to connect to | failed to connect to all addresses | failed to recv, got 0 bytes | failed to resolve |
fatal error in pmpi | gaierror | getaddrinfo | gloo*connection | got completion from peer*with status=12 |
got completion with error | got completion*with error 12 | heartbeat timeout | keep-alive heartbeat | lagging heartbeats |
local qp operation | localentrynotfounderror | lost connection | lost contact | marked dead*heartbeat |
max retries exceeded with url | missed heartbeat | missed too many heartbeats | missing heartbeats | mpi_err |
nccl error: remote | ncclremoteerror | ncclsystemerror | net/ib | net/ofi | net/socket | newconnectionerror |
no connection could | nodediederror | oob_tcp | orte daemon | orte has lost communication | peer closed connection |
peer*disconnected | rayactorerror | readtimeouterror | recv*failed | remote process exited or there was a network error |
remotedisconnected | rendezvous*failed | rendezvous*timed out | rendezvousclosederror | rendezvousconnectionerror |
rendezvoustimeouterror | requests.exceptions.connectionerror | requests.exceptions.readtimeout | socket closed |
socket.timeout | socketpollconnect | socketstartconnect | software caused connection abort | tcpstore*fail |
the client socket has timed out | unable to connect | unhandled system error | vendor err | waiting for clients)"},
    {kNetwork, kCause,
     R"(<bond*<down> | <ib*async*port*err | <link*is down | <nic>*<down> | <pfc> | <roce>*down | address already in use |
async event: *port error | carrier lost | could not resolve host | dns lookup | dns resolution | eaddrinuse |
failed to bind to | ib link | ib port*down | ib_port | ib_port_err | ibv_event_port_err | ibv_modify_qp failed |
ibv_poll_cq | ibv_reg_mr*failed | ibv_wc_retry_exc_err | libfabric error | link down | link flap | link is down |
link*went down | local protection error | local work queue operation error | mlx5*: *error | mlx5_core*fatal |
name or service not known | name resolution | net/ofi*error | network is unreachable | no route to host | packet loss |
port*link down | port*went down | remote access error | socket timeout | status=ibv_wc | symbol errors |
temporary failure in name resolution | transport retry count exceeded | transport retry counter exceeded |
unreachable remote | unresponsive receiver | work request flushed)"},
    {kNetwork, kHint, R"(unreachable)"},
    // storage
    {kStorage, kCause,
     R"(/*not responding | blocklisted | download failed: s3:// | errno = 37 | error reading*gs:// | error reading*s3:// |
error writing*gs:// | error writing*s3:// | http response code: 503 | mds*rejected session | no locks available |
stale session | upload failed:)"},
    {kStorage, kCause,
     R"((internalerror) | (requesttimeout) | (slowdown) | /mnt/*not responding | 503 service unavailable | 503 slow down | 6027- |
<ceph*error | <fuse>*error | <gcs>*<503> | <osd*<down> | <s3*<500> | <s3*<503> | <s3*internalerror | <s3*timeout |
<short read | <short write | <slowdown> | <weka*error | arrowioerror | azure*serverbusy |
azure.core.exceptions.servicerequest | azure.core.exceptions.serviceresponse | backend error | beegfs*error |
blob*serverbusy | blobfuse | blockmissingexception | botocore.exceptions | cannot send after transport endpoint shutdown |
checkpoint*corrupt | checksum*mismatch*shard | connection timed out: '/ | connection to the storage | corrupt*checkpoint |
could not be stored | could not obtain block | curl returned error code | datanode | device or resource busy: '.nfs |
disk full | disk quota exceeded | edquot | endpointconnectionerror | enforce fail at inline_container.cc | enospc |
errno 107] | errno 108] | errno 110]*'/ | errno 112] | errno 116] | errno 121] | errno 122] | errno 28] | errno 30]*'/ |
errno 5]*'/ | errno = 122 | errno = 28 | errno = 5 | error code: 5 | error writing*checkpoint | estale |
failed finding central directory | failed to upload | failed to write checkpoint | file size limit exceeded |
file system*unavailable | file too large | file write failed | filesystem*full | fstimeouterror | gcsfuse | goofys |
google.api_core.exceptions.serviceunavailable | google.api_core.exceptions.toomanyrequests | gpfs*error |
gs://*timed out | hdfs*exception | hdfs://*error | host is down: | http error 500 | http error 503 | httperror*429 |
httperror*500 | httperror*503 | inline_container.cc*unexpected pos | invalid header or archive is corrupted | ldlm |
lustre*evicted | lustre*lost | lustre*not responding | lustreerror | metadataincompletebuffer | mmfs*error | mmfs*stale |
mount*lost | nfs*not responding | nfs*timed out | nfs: server*not responding | no space left | no space left on device |
nosuchbucket | not responding, still trying | o2ib | objectstore*error | pytorchstreamreader failed |
pytorchstreamwriter failed | quota exceeded | ratelimitexceeded | reduce your request rate | remote i/o error |
requesttimetooskewed | s3://*timed out | s3fs | s3uploadfailederror | serverbusy | serviceunavailable |
stale file handle | stale nfs file handle | storage.googleapis | this client was evicted | throttl |
took too long to download | transport endpoint is not connected | unable to connect to endpoint | write error:)"},
    {kStorage, kConsequence,
     R"(100 % full | 99 % full | errno 30] | errno 5] | input/output error | read-only file system)"},
    // hosts
    {kHost, kCause,
     R"(failed to create cgroup | prolog failed | taskprolog | unable to create cgroup)"},
    {kHost, kCause,
     R"(/dev/nvidia*operation not permitted | cuda driver initialization failed |
cuda initialization: unexpected error | driver/library version mismatch | fabric manager | fabricmanager |
failed to initialize nvml | found no nvidia driver | librmversionmismatch | nvidia-smi has failed because |
nvml/rm version mismatch | unable to initialize nvml | version mismatch*rm has)",
     true},
    {kHost, kCause,
     R"(<edac*<ue> | <node*<down> | <psu> | <rebooting | bmc power | bmc: |
bug: unable to handle | containerd*failed | could not select device driver | cpu temperature | credential revoked |
critical temperature | disk / read-only |
disk*100 % full | disk*i/o errors | disk*read-only | edac*uncorrect |
error response from daemon | failed to create pod sandbox | failed to create shim task |
general protection fault: | going down for | hard lockup |
hardware error] | host is down | host rebooted | host unreachable | host*went down | ipmi | kernel bug at | kernel panic |
kernel: bug: | kubelet stopped posting | lost power | machine check | mce: | mce: [hardware error] | mce: cpu |
memory failure: | nmi watchdog | no usable temporary directory | node fail | node failure | node failure on |
node is not ready | node not ready | node*not responding | node*unreachable | node_fail | nodelost | nodenotready |
nodes*down | nvidia-container-cli | nvme*controller is down | oci runtime |
power failure | power lost | power state off | power supply | rcu*detected stalls | rcu*stall | reboot: | rebooted |
remounting filesystem read-only | shutting down for | shutting down*temperature | slurmd*not responding | system halted |
system is rebooting | system shutdown | taintmanager | temperature above threshold, cpu | the system will reboot |
too many open files in system | uncorrected*memory error | unexpected reboot |
unexpectedly rebooted | watchdog: bug: soft lockup)"},
    // hangs
    {kHang, kCause, R"(engine iteration timed out)"},
    {kHang, kWarned, R"(some nccl operations have failed or timed out)"},
    {kHang, kConsequence,
     R"(<stalled> | barrier timeout | barrier*timed out | collective operation timeout | dataloader timed out |
failed to pass monitoredbarrier | heartbeat monitor timed out | in waiting for key | missing ranks | monitoredbarrier |
nccl timeout | ran for*milliseconds before timing out | stalled ranks | store based barrier | timed out after |
timed out waiting*for recv operation | timed out waiting*for send operation | wait timeout after | waiting for key |
watchdog caught collective operation timeout | watchdog thread*terminat | watchdog*stuck)"},
    {kHang, kCause,
     R"(<deadlock> | appears to be hung | blocked for more than * seconds | did not get subsequent heartbeat |
gpu utilization 100 % | hang detected | hang was confirmed | has been stuck | hung task | hung_task | is considered hung |
is hung | liveness probe failed | made no progress | may be stuck | ncclhangerror | no activity for | no heartbeat from |
no output for | no progress for | not made progress | process hang | py-spy dump | stuck at step |
terminate called*stuck | termination timeout for)"},
    // taken away
    {kPreempted, kCause, R"(because of reclaim | reclaim*evict)"},
    {kPreempted, kConsequence, R"(preempt)"},
    {kPreempted, kCause,
     R"(<preempted | <preempting | <spot> | because of preemption | being reclaimed | capacity*reclaim | capacity*returned |
checkpoint-on-preempt | due to job requeue | due to preemption | due to requeue | eventtype*preempt |
evicted to accommodate | evicted*preempt | evictedbypreemption | eviction notice | instance state preempted |
instance state stopping | instance state terminated by provider | instance will be terminated | instance*terminat*notice |
instance-action | interruption notice | maintenance-event | preemption by | preemption detected | preemption event |
preemption notice | preemption signal | preemption warning | preemption*received | rebalance recommendation |
received preempt | received*preemption | reclaimed by | requeued due to | scheduled*termination notice | taken back |
terminate_on_host_maintenance | to admit*priority)"},
    // from outside
    {kKilled, kCause, R"(received 1 death signal | received 2 death signal)"},
    {kKilled, kConsequence,
     R"(died with <signals.sigkill | died with <signals.sigterm | terminated with signal sigkill |
terminated with signal sigterm)"},
    {kKilled, kCause,
     R"(<bkill> | <qdel> | aborted by user | activedeadlineseconds | cancel request | cancelled at | cancelled by user |
deadlineexceeded | due to time limit | exceeded time limit | exceeding time limit | interrupted by user | job canceled |
job cancelled | kill -9 | killed by user | kubectl delete | scancel | sending signal term | step cancelled |
stop requested: cancelled | terminated by user | time limit | wall time exceeded | walltime | was cancelled by)"},
    {kKilled, kConsequence,
     R"(<hangup> | <keyboardinterrupt | <sighup> | <sigint> | caught sigterm | exitcode  : -15 | exitcode  : -9 | exitcode: -15 |
exitcode: -9 | exited with signal 9 | got signal: 1 | got signal: 15 | got signal: 2 | got signal: 9 |
received 1 death signal | received 15 death signal | received signal 1 | received signal 15 | received signal 2 |
received signal: 15 | received sigterm | signal 1 from outside | signal 15 (sigterm) | signal 15 from outside |
signal 2 from outside | signal 9 (sigkill) | signal 9 from outside | signal: 15 | signalexception: process*got signal |
sigterm received | user interrupt)"},
    {kKilled, kHint, R"(<killed> | sigkill | terminated)"},
    // the program
    {kUserError, kConsequence,
     R"((sigfpe) | (sigsegv) | caught signal 11 | caught signal 4 | caught signal 8 | signals.sigsegv)"},
    {kUserError, kConsequence,
     R"(<assertionerror> | <attributeerror> | <configattributeerror> | <configkeyerror> | <filenotfounderror> | <importerror> |
<indentationerror> | <indexerror> | <isadirectoryerror> | <jsondecodeerror> | <keyerror> | <modulenotfounderror> |
<nameerror> | <notadirectoryerror> | <notimplementederror> | <permissionerror> | <recursionerror> | <syntaxerror> |
<typeerror> | <unboundlocalerror> | <unicodedecodeerror> | <unpicklingerror> | <valueerror> | <zerodivisionerror> |
assertion*failed | corrupted size | deprecated and removed | double free | floating point exception | free(): invalid |
illegal instruction | index out of range | insufficient for cuda runtime | invalid pointer | is not defined |
memory access fault by gpu | misaligned address | not divisible | sigsegv | unspecified launch failure)"},
    {kUserError, kHint,
     R"(<runtimeerror> | cannot | core dumped | error: | exception | expected | forbidden | invalid argument | mismatch |
must be | not permitted | not supported | segmentation fault | too old | traceback (most recent call last) | unsupported)"},
    {kUserError, kCause,
     R"((401) | (403) | (404) | 401 client error | 403 client error | 404 client error | accessdenied |
an illegal memory access was encountered | api_key not configured | command not found | cublas_status_invalid_value |
device-side assert triggered | does not require grad | dtype mismatch | duplicate gpu detected |
eoferror: ran out of input | error(s) in loading state_dict | error: argument |
expected all tensors to be on the same device | expected scalar type | expected to have finished reduction |
floatingpointerror | found nan | gatedrepoerror | headertoolarge | hydra.errors | invalid choice |
invalid configuration argument | invalid device function | invalid device ordinal | invalid token |
is not a local folder | is not a valid model identifier | loss is nan | loss scale already at minimum | loss: nan |
mat1 and mat2 | minimum loss scale reached | mismatch between collectives | mixed types |
modified by an inplace operation | must match the | nan detected | nan or inf | nccl error*invalid usage |
ncclinvalidusage | no kernel image is available | no module named | no such file or directory | no such option |
omegaconf.errors | overflowerror | parsererror | permission denied | pickleerror | picklingerror |
received 0 items of ancdata | repositorynotfounderror | scannererror | shape*is invalid for input |
shapes cannot be multiplied | size mismatch | stopiteration | the following arguments are required |
the size of tensor a | too many open files | trying to backward through the graph a second time | unauthorized |
undefined symbol | unrecognized arguments | validationerror | was not found in)"},
};

constexpr Group kWholeSentences[] = {
    // of Muster's own launcher: another head would be another cluster, whatever ended this one
    {kUserError, kCause, R"(muster_ray: the head has ended:)"},
    // mistakes that quote names of the program's own
    {kUserError, kCause,
     R"([errno 2] no such file | docker daemon running | error: argument | is not in list | unrecognized arguments |
botocore.exceptions.paramvalidationerror | botocore.exceptions.profilenotfound |
connecting to 127.0.0.1*refused | connecting to localhost*refused | host='127.0.0.1'*max retries exceeded |
host='localhost'*max retries exceeded | errno 30]*'/bin/ | errno 30]*'/etc/ | errno 30]*'/lib | errno 30]*'/opt/ |
errno 30]*'/sbin/ | errno 30]*'/usr/)"},
    {kUserError, kConsequence,
     R"(<attributeerror: | <indexerror: | <keyerror: | <modulenotfounderror: | <nameerror: | <syntaxerror: |
<typeerror: | <unboundlocalerror:)"},
    {kUserError, kHint, R"(<usage: )"},
    {kStorage, kConsequence, R"(not responding, still trying)"},
    {kUserError, kHint, R"(nccl info channel | nccl info connected | via net/)"},
    {kUserError, kHint, R"(os.fork() is incompatible)"},
    {kStorage, kCause, R"(download failed: s3:// | unavailable: error reading)"},
    {kNetwork, kConsequence,
     R"(the actor died unexpectedly | the actor is dead because its worker process has died)"},
    {kUserError, kCause,
     R"(403 get | 403 post | 403 put | error code 403 | forbidden: 403 | status code 403)"},
    {kHost, kCause, R"(<dimm)"},
    {kStorage, kCause,
     R"(<lneterror | blobfuse | no space left on device [op: | resourceexhaustederror*no space left)"},
    {kPreempted, kHint, R"(got preempted or)"},
    {kUserError, kCause,
     R"((accessdenied) | (expiredtoken) | (invalidaccesskeyid) | (nosuchbucket) | (nosuchkey) | (signaturedoesnotmatch) |
an error occurred (403) | an error occurred (404) | nocredentialserror | unable to locate credentials)"},
    {kNetwork, kConsequence,
     R"(coordination agent is in error | distributed service detected fatal errors |
has been set to error in coordination service | remote process exited or there was a network error |
system call (e.g. socket, malloc) | system call (socket, malloc | the coordinator detected missing heartbeats |
the node with*has been marked dead)"},
    {kUserError, kHint,
     R"(cuda kernel errors might be asynchronously reported | sw thermal slowdown | to avoid deadlocks)"},
    {kNetwork, kHint, R"(thrown while requesting)"},
};

std::vector<Rule> Spread(std::span<const Group> groups) {
  std::vector<Rule> rules;
  for (const Group& group : groups) {
    for (std::string_view rest = group.patterns; !rest.empty();) {
      const size_t bar = std::min(rest.find('|'), rest.size());
      std::string_view pattern = rest.substr(0, bar);
      rest.remove_prefix(std::min(bar + 1, rest.size()));
      constexpr std::string_view kSpace = " \n";
      pattern.remove_prefix(std::min(pattern.find_first_not_of(kSpace), pattern.size()));
      pattern = pattern.substr(0, pattern.find_last_not_of(kSpace) + 1);
      rules.push_back({group.cls, group.weight, pattern, group.cls == kDevice || group.of_driver});
    }
  }
  return rules;
}

}  // namespace

std::span<const Rule> WholeSentenceRules() {
  static const std::vector<Rule> rules = Spread(kWholeSentences);
  return rules;
}

std::span<const Rule> FailureRules() {
  static const std::vector<Rule> rules = Spread(kGroups);
  return rules;
}

bool XidBlamesDevice(int xid) {
  static constexpr std::array kOfDevice = {46,  48,  54,  57,  58,  61,  62,  63,  64,  74,  79,
                                           81,  92,  94,  95,  110, 119, 120, 121, 140, 142, 143,
                                           144, 145, 146, 147, 148, 149, 150, 154, 155, 156, 158};
  return std::find(kOfDevice.begin(), kOfDevice.end(), xid) != kOfDevice.end();
}

bool XidNeedsReset(int xid) {
  // Uncorrectable ECC, halted microcontroller, failed row remapping, fallen off the bus,
  // uncontained ECC, GSP, failed initialization, fatal.
  static constexpr std::array kReset = {48, 61, 62, 64, 79, 95, 119, 120, 140, 143, 158};
  return std::find(kReset.begin(), kReset.end(), xid) != kReset.end();
}

}  // namespace muster
