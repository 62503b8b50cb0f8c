# SPDX-License-Identifier: Apache-2.0
"""Writes `_libbpf.py`: libbpf's declarations compiled for cffi's out-of-line ABI mode.

Run at build time, so that a start parses no C and needs no compiler. Everything declared here is in libbpf 1.0;
what came later is asked for by name when it is used.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cffi import FFI

DECLARATIONS = """
typedef uint8_t __u8;
typedef uint32_t __u32;
typedef uint64_t __u64;

struct bpf_object; struct bpf_program; struct bpf_map; struct bpf_link; struct btf;
struct perf_event_attr;

uint32_t libbpf_major_version(void);
uint32_t libbpf_minor_version(void);
const char *libbpf_version_string(void);
int libbpf_num_possible_cpus(void);
typedef int (*libbpf_print_fn_t)(int level, const char *format, void *arguments);
libbpf_print_fn_t libbpf_set_print(libbpf_print_fn_t fn);

struct bpf_object_open_opts {
    size_t sz;
    const char *object_name;
    _Bool relaxed_maps;
    const char *pin_root_path;
    __u32 padding;
    const char *kconfig;
    const char *btf_custom_path;
    char *kernel_log_buf;
    size_t kernel_log_size;
    __u32 kernel_log_level;
};

struct bpf_object *bpf_object__open_mem(const void *bytes, size_t size, const struct bpf_object_open_opts *opts);
int bpf_object__load(struct bpf_object *object);
void bpf_object__close(struct bpf_object *object);
struct bpf_program *bpf_object__next_program(const struct bpf_object *object, struct bpf_program *previous);
struct bpf_map *bpf_object__next_map(const struct bpf_object *object, const struct bpf_map *previous);

const char *bpf_program__name(const struct bpf_program *program);
const char *bpf_program__section_name(const struct bpf_program *program);
_Bool bpf_program__autoload(const struct bpf_program *program);
int bpf_program__set_autoload(struct bpf_program *program, _Bool autoload);
int bpf_program__type(const struct bpf_program *program);
int bpf_program__fd(const struct bpf_program *program);
size_t bpf_program__insn_cnt(const struct bpf_program *program);
const void *bpf_program__insns(const struct bpf_program *program);
int bpf_program__set_log_level(struct bpf_program *program, __u32 level);
int bpf_program__set_log_buf(struct bpf_program *program, char *buffer, size_t size);
struct bpf_link *bpf_program__attach(const struct bpf_program *program);
struct bpf_link *bpf_program__attach_trace(const struct bpf_program *program);
struct bpf_link *bpf_program__attach_perf_event(const struct bpf_program *program, int fd);
int bpf_link__destroy(struct bpf_link *link);

const char *bpf_map__name(const struct bpf_map *map);
int bpf_map__type(const struct bpf_map *map);
int bpf_map__fd(const struct bpf_map *map);
__u32 bpf_map__key_size(const struct bpf_map *map);
__u32 bpf_map__value_size(const struct bpf_map *map);
__u32 bpf_map__max_entries(const struct bpf_map *map);
int bpf_map__set_max_entries(struct bpf_map *map, __u32 entries);
int bpf_map__set_value_size(struct bpf_map *map, __u32 size);
int bpf_map__set_autocreate(struct bpf_map *map, _Bool autocreate);
__u32 bpf_map__btf_key_type_id(const struct bpf_map *map);
__u32 bpf_map__btf_value_type_id(const struct bpf_map *map);
_Bool bpf_map__is_internal(const struct bpf_map *map);
void *bpf_map__initial_value(struct bpf_map *map, size_t *size);
int bpf_map__reuse_fd(struct bpf_map *map, int fd);

struct bpf_map_create_opts {
    size_t sz;
    __u32 btf_fd;
    __u32 btf_key_type_id;
    __u32 btf_value_type_id;
    __u32 btf_vmlinux_value_type_id;
    __u32 inner_map_fd;
    __u32 map_flags;
};
int bpf_map_create(int type, const char *name, __u32 key_size, __u32 value_size, __u32 max_entries,
                   const struct bpf_map_create_opts *opts);

struct bpf_map_batch_opts {
    size_t sz;
    __u64 elem_flags;
    __u64 flags;
};
int bpf_map_lookup_elem(int fd, const void *key, void *value);
int bpf_map_update_elem(int fd, const void *key, const void *value, __u64 flags);
int bpf_map_delete_elem(int fd, const void *key);
int bpf_map_get_next_key(int fd, const void *key, void *next_key);
int bpf_map_lookup_batch(int fd, void *in_batch, void *out_batch, void *keys, void *values, __u32 *count,
                         const struct bpf_map_batch_opts *opts);

struct bpf_prog_load_opts {
    size_t sz;
    int attempts;
    int expected_attach_type;
    __u32 prog_btf_fd;
    __u32 prog_flags;
    __u32 prog_ifindex;
    __u32 kern_version;
    __u32 attach_btf_id;
    __u32 attach_prog_fd;
    __u32 attach_btf_obj_fd;
    const int *fd_array;
    const void *func_info;
    __u32 func_info_cnt;
    __u32 func_info_rec_size;
    const void *line_info;
    __u32 line_info_cnt;
    __u32 line_info_rec_size;
    __u32 log_level;
    __u32 log_size;
    char *log_buf;
};
struct libbpf_prog_handler_opts {
    size_t sz;
    long cookie;
    void *prog_setup_fn;
    int (*prog_prepare_load_fn)(struct bpf_program *program, struct bpf_prog_load_opts *opts, long cookie);
    void *prog_attach_fn;
};
int libbpf_register_prog_handler(const char *section, int type, int attach_type,
                                 const struct libbpf_prog_handler_opts *opts);
int bpf_prog_load(int type, const char *name, const char *license, const void *instructions, size_t count,
                  const struct bpf_prog_load_opts *opts);
int bpf_raw_tracepoint_open(const char *name, int program);

struct bpf_test_run_opts {
    size_t sz;
    const void *data_in;
    void *data_out;
    __u32 data_size_in;
    __u32 data_size_out;
    const void *ctx_in;
    void *ctx_out;
    __u32 ctx_size_in;
    __u32 ctx_size_out;
    __u32 retval;
};
int bpf_prog_test_run_opts(int program, struct bpf_test_run_opts *opts);

struct bpf_prog_info {
    __u32 type;
    __u32 id;
    __u8 tag[8];
    __u32 jited_prog_len;
    __u32 xlated_prog_len;
    __u64 jited_prog_insns;
    __u64 xlated_prog_insns;
    __u64 load_time;
    __u32 created_by_uid;
    __u32 nr_map_ids;
    __u64 map_ids;
    char name[16];
    __u32 ifindex;
    __u32 gpl_compatible;
    __u64 netns_dev;
    __u64 netns_ino;
    __u32 nr_jited_ksyms;
    __u32 nr_jited_func_lens;
    __u64 jited_ksyms;
    __u64 jited_func_lens;
    __u32 btf_id;
    __u32 func_info_rec_size;
    __u64 func_info;
    __u32 nr_func_info;
    __u32 nr_line_info;
    __u64 line_info;
    __u64 jited_line_info;
    __u32 nr_jited_line_info;
    __u32 line_info_rec_size;
    __u32 jited_line_info_rec_size;
    __u32 nr_prog_tags;
    __u64 prog_tags;
    __u64 run_time_ns;
    __u64 run_cnt;
    __u64 recursion_misses;
    __u32 verified_insns;
    __u32 attach_btf_obj_id;
    __u32 attach_btf_id;
};
struct bpf_map_info {
    __u32 type;
    __u32 id;
    __u32 key_size;
    __u32 value_size;
    __u32 max_entries;
    __u32 map_flags;
    char name[16];
    __u32 ifindex;
    __u32 btf_vmlinux_value_type_id;
    __u64 netns_dev;
    __u64 netns_ino;
    __u32 btf_id;
    __u32 btf_key_type_id;
    __u32 btf_value_type_id;
    __u32 btf_vmlinux_id;
    __u64 map_extra;
};

struct bpf_link_info {
    __u32 type;
    __u32 id;
    __u32 prog_id;
    __u32 padding;
    union {
        struct { __u64 tp_name; __u32 tp_name_len; } raw_tracepoint;
        struct { __u32 attach_type; __u32 target_obj_id; __u32 target_btf_id; } tracing;
        struct { __u64 cgroup_id; __u32 attach_type; } cgroup;
        struct { __u64 target_name; __u32 target_name_len; } iter;
        struct { __u32 netns_ino; __u32 attach_type; } netns;
        struct { __u32 ifindex; } xdp;
        struct { __u32 ifindex; __u32 attach_type; } tcx;
        struct { __u32 map_id; } struct_ops;
        struct { __u64 addrs; __u32 count; __u32 flags; } kprobe_multi;
        struct { __u32 type; __u32 padding; __u64 name; __u32 name_len; __u32 offset; __u64 more[3]; } perf_event;
    };
};

struct bpf_btf_info {
    __u64 btf;
    __u32 btf_size;
    __u32 id;
    __u64 name;
    __u32 name_len;
    __u32 kernel_btf;
};

int bpf_prog_get_next_id(__u32 start, __u32 *next);
int bpf_map_get_next_id(__u32 start, __u32 *next);
int bpf_btf_get_next_id(__u32 start, __u32 *next);
int bpf_link_get_next_id(__u32 start, __u32 *next);
int bpf_prog_get_fd_by_id(__u32 id);
int bpf_map_get_fd_by_id(__u32 id);
int bpf_link_get_fd_by_id(__u32 id);
int bpf_btf_get_fd_by_id(__u32 id);
int bpf_obj_get_info_by_fd(int fd, void *info, __u32 *size);
int bpf_task_fd_query(int pid, int fd, __u32 flags, char *buffer, __u32 *size, __u32 *prog_id, __u32 *type,
                      __u64 *offset, __u64 *address);
int bpf_enable_stats(int type);
const char *libbpf_bpf_prog_type_str(int type);
const char *libbpf_bpf_map_type_str(int type);
const char *libbpf_bpf_link_type_str(int type);
const char *libbpf_bpf_attach_type_str(int type);

struct btf_type {
    __u32 name_off;
    __u32 info;
    __u32 size_or_type;
};
struct btf *bpf_object__btf(const struct bpf_object *object);
struct btf *btf__load_vmlinux_btf(void);
struct btf *btf__new(const void *data, __u32 size);
struct btf *btf__load_module_btf(const char *module, struct btf *base);
struct btf *btf__load_from_kernel_by_id(__u32 id);
void btf__free(struct btf *btf);
__u32 btf__type_cnt(const struct btf *btf);
const void *btf__raw_data(const struct btf *btf, __u32 *size);
const struct btf_type *btf__type_by_id(const struct btf *btf, __u32 id);
const char *btf__name_by_offset(const struct btf *btf, __u32 offset);
int btf__find_by_name_kind(const struct btf *btf, const char *name, __u32 kind);

int vsnprintf(char *buffer, size_t size, const char *format, void *arguments);
int malloc_trim(size_t pad);
void *memmem(const void *text, size_t size, const void *wanted, size_t length);
long syscall(long number, ...);
"""


def build(target: Path) -> None:
    ffi = FFI()
    ffi.cdef(DECLARATIONS)
    ffi.set_source("wptrace.bpf._libbpf", None)
    ffi.emit_python_code(str(target))


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("_libbpf.py"))
