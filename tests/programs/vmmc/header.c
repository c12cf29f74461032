/* vmmc.h is plain C, and every call is in the library. */
#include <vmmc.h>

typedef void (*call_t)(void);
#define CALL(name) ((call_t)(name))

const call_t vmmc_calls[] = {
    CALL(vmmc_open),          CALL(vmmc_close),      CALL(vmmc_alloc),
    CALL(vmmc_free),          CALL(vmmc_export),     CALL(vmmc_unexport),
    CALL(vmmc_cookie),        CALL(vmmc_import),     CALL(vmmc_import_of),
    CALL(vmmc_import_cookie), CALL(vmmc_unimport),   CALL(vmmc_size),
    CALL(vmmc_check),         CALL(vmmc_send),       CALL(vmmc_send_async),
    CALL(vmmc_test),          CALL(vmmc_wait),       CALL(vmmc_put_word),
    CALL(vmmc_notify),        CALL(vmmc_notifications), CALL(vmmc_block),
    CALL(vmmc_unblock),       CALL(vmmc_suspend),    CALL(vmmc_poll),
    CALL(vmmc_fd),            CALL(vmmc_redirect),   CALL(vmmc_bind),
    CALL(vmmc_bind_both),     CALL(vmmc_unbind),     CALL(vmmc_bound),
    CALL(vmmc_flush),         CALL(vmmc_store),      CALL(vmmc_store_word),
    CALL(vmmc_compares),
};
int main(void) { return vmmc_calls[0] == 0; }
