// For test_prepare_storages.py: libhdfs's functions, as Arrow calls them, over the local folder $LOCAL_HDFS; the namenode must be
// $LOCAL_HDFS_NAMENODE, as HOST:PORT.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct {
  int kind;  // 'F', 'D'
  char* name;
  time_t last_mod;
  int64_t size;
  short replication;
  int64_t block_size;
  char *owner, *group;
  short permissions;
  time_t last_access;
} hdfsFileInfo;

typedef struct {
  const char* host;
  uint16_t port;
} Builder;

static char* Local(const char* path) {
  static __thread char local[4096];
  snprintf(local, sizeof local, "%s/%s", getenv("LOCAL_HDFS"), path);
  return local;
}

static int Fill(const char* path, hdfsFileInfo* info) {
  struct stat status;
  char uri[8192];
  snprintf(uri, sizeof uri, "hdfs://%s%s", getenv("LOCAL_HDFS_NAMENODE"), path);
  if (stat(Local(path), &status) != 0) return -1;
  memset(info, 0, sizeof *info);
  info->kind = S_ISDIR(status.st_mode) ? 'D' : 'F';
  info->name = strdup(uri), info->owner = strdup("o"), info->group = strdup("g");
  info->last_mod = status.st_mtime, info->size = S_ISDIR(status.st_mode) ? 0 : status.st_size;
  return 0;
}

Builder* hdfsNewBuilder(void) { return calloc(1, sizeof(Builder)); }
void hdfsBuilderSetNameNode(Builder* b, const char* host) { b->host = host; }
void hdfsBuilderSetNameNodePort(Builder* b, uint16_t port) { b->port = port; }
void hdfsBuilderSetUserName(Builder* b, const char* user) {}
void hdfsBuilderSetKerbTicketCachePath(Builder* b, const char* path) {}
void hdfsBuilderSetForceNewInstance(Builder* b) {}
int hdfsBuilderConfSetStr(Builder* b, const char* key, const char* value) { return 0; }
void* hdfsBuilderConnect(Builder* b) {
  char asked[300];
  snprintf(asked, sizeof asked, "%s:%d", strncmp(b->host, "hdfs://", 7) == 0 ? b->host + 7 : b->host, b->port);
  if (strcmp(asked, getenv("LOCAL_HDFS_NAMENODE")) == 0) return b;
  errno = ECONNREFUSED;
  return NULL;
}
int hdfsDisconnect(void* fs) { return 0; }

char* hdfsGetWorkingDirectory(void* fs, char* out, size_t size) {
  snprintf(out, size, "hdfs://%s/", getenv("LOCAL_HDFS_NAMENODE"));
  return out;
}

int hdfsExists(void* fs, const char* path) { return access(Local(path), F_OK); }
hdfsFileInfo* hdfsGetPathInfo(void* fs, const char* path) {
  hdfsFileInfo* info = malloc(sizeof *info);
  return Fill(path, info) == 0 ? info : NULL;
}
hdfsFileInfo* hdfsListDirectory(void* fs, const char* path, int* count) {
  DIR* folder = opendir(Local(path));
  *count = 0;
  if (folder == NULL) return NULL;
  hdfsFileInfo* found = calloc(100, sizeof *found);
  for (struct dirent* entry; (entry = readdir(folder)) != NULL && *count < 100;) {
    char name[4096];
    const size_t length = strlen(path);
    snprintf(name, sizeof name, "%.*s/%s", (int)(length > 0 && path[length - 1] == '/' ? length - 1 : length), path, entry->d_name);
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && Fill(name, &found[*count]) == 0) ++*count;
  }
  closedir(folder);
  errno = 0;
  return found;
}
void hdfsFreeFileInfo(hdfsFileInfo* info, int count) {}

void* hdfsOpenFile(void* fs, const char* path, int flags, int buffer, short replication, int32_t block) {
  const int fd = open(Local(path), flags);
  return fd < 0 ? NULL : (void*)(intptr_t)(fd + 1);
}
static int Fd(void* file) { return (int)(intptr_t)file - 1; }
int hdfsCloseFile(void* fs, void* file) { return close(Fd(file)); }
int hdfsSeek(void* fs, void* file, int64_t at) { return lseek(Fd(file), at, SEEK_SET) < 0 ? -1 : 0; }
int64_t hdfsTell(void* fs, void* file) { return lseek(Fd(file), 0, SEEK_CUR); }
int32_t hdfsRead(void* fs, void* file, void* out, int32_t n) { return (int32_t)read(Fd(file), out, (size_t)n); }
int32_t hdfsPread(void* fs, void* file, int64_t at, void* out, int32_t n) { return (int32_t)pread(Fd(file), out, (size_t)n, at); }

// Arrow wants them to be there; `prepare` only reads.
#define NOT_HERE(name) int name(void) { errno = EPERM; return -1; }
NOT_HERE(hdfsCreateDirectory) NOT_HERE(hdfsDelete) NOT_HERE(hdfsGetCapacity) NOT_HERE(hdfsGetUsed) NOT_HERE(hdfsChown) NOT_HERE(hdfsChmod)
NOT_HERE(hdfsFlush) NOT_HERE(hdfsWrite) NOT_HERE(hdfsAvailable) NOT_HERE(hdfsCopy) NOT_HERE(hdfsMove) NOT_HERE(hdfsRename) NOT_HERE(hdfsUtime)
NOT_HERE(hdfsSetReplication) NOT_HERE(hdfsGetHosts) NOT_HERE(hdfsFreeHosts) NOT_HERE(hdfsGetDefaultBlockSize) NOT_HERE(hdfsHFlush)
NOT_HERE(hdfsSetWorkingDirectory) NOT_HERE(hdfsUnbufferFile)
